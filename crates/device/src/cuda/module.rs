//! Kernels: modules compiled for the card and loaded, and functions with typed parameters.

use super::compile::{Source, compiled};
use super::driver::{Handle, failed};
use super::error::CudaError;
use super::{Cuda, CudaSlice, CudaSliceMut};
use crate::device::{DeviceId, Element};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use std::ffi::{CString, c_void};
use std::marker::PhantomData;

/// A source compiled for a device's card. It stays loaded as long as the device lives.
pub struct Module {
    device: Cuda,
    raw: Handle<sys::CUmodule>,
}

/// A function of a module with parameters `P`.
pub struct Kernel<P> {
    device: DeviceId,
    name: &'static str,
    function: Handle<sys::CUfunction>,
    shared: u32,
    start: Start,
    parameters: PhantomData<fn(P)>,
}

/// When a kernel may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// When everything enqueued before it has ended.
    Behind,
    /// When the kernel enqueued before it lets it, or has ended.
    Early,
}

impl<P> Clone for Kernel<P> {
    fn clone(&self) -> Self {
        let Kernel { device, name, function, shared, start, .. } = self;
        let (device, function) = (device.clone(), Handle(function.0));
        let (name, shared, start) = (*name, *shared, *start);
        Kernel { device, name, function, shared, start, parameters: PhantomData }
    }
}

impl Module {
    /// Compiles `source` for the device's card, or takes what was compiled before from the
    /// device's cache, and loads it.
    ///
    /// # Errors
    /// No compiler, a source that it refuses, or a failure of the driver.
    pub fn load(device: &Cuda, source: &Source) -> Result<Module, CudaError> {
        let image = compiled(source, &device.target(), device.cache())?;
        let loading = failed("loading a module");
        device.bind().map_err(&loading)?;
        // SAFETY: the compiler made the image for this card; the driver copies it.
        let raw = unsafe { result::module::load_data(image.as_ptr().cast()) }.map_err(&loading)?;
        device.keep(Handle(raw));
        Ok(Module { device: device.clone(), raw: Handle(raw) })
    }

    /// The function `name`.
    ///
    /// # Errors
    /// No such function, or the sizes of its parameters are not those of `P`.
    ///
    /// # Safety
    /// The function, declared `extern "C" __global__`, has parameters of the types that `P` says.
    /// On any grid it reads and writes elements of the slices it is given and nothing else, writes
    /// to none that it was given to read, and leaves values that their types allow.
    pub unsafe fn kernel<P: Parameters>(&self, name: &'static str) -> Result<Kernel<P>, CudaError> {
        let wrong = |problem: String| CudaError::Kernel { name, problem };
        let finding = |e| wrong(format!("not found: {}", super::driver::said(e)));
        self.device.bind().map_err(finding)?;
        let c_name = CString::new(name).map_err(|_| wrong("a name without zeros".to_owned()))?;
        // SAFETY: the module stays loaded while the device lives.
        let function = unsafe { result::module::get_function(self.raw.0, c_name) };
        let function = function.map_err(finding)?;
        // Loaded now: the driver would load it at its first launch, and stop the card for that.
        // SAFETY: the function was just found.
        unsafe { sys::cuFuncLoad(function) }.result().map_err(finding)?;
        let (has, wants) = (sizes(function).map_err(finding)?, P::SIZES.concat());
        if has != wants {
            return Err(wrong(format!(
                "its source has parameters of {has:?} bytes, its caller gives {wants:?}"
            )));
        }
        let device = self.device.inner.id.clone();
        let (function, parameters) = (Handle(function), PhantomData);
        Ok(Kernel { device, name, function, shared: 0, start: Start::Behind, parameters })
    }

    /// [`Module::kernel`] for a function that uses `shared` bytes of shared memory which its launch
    /// has to ask for, and that may **start early** where the card can: while what was enqueued
    /// before it still runs.
    ///
    /// # Errors
    /// As [`Module::kernel`], and when a block of threads of this card has not so much memory.
    ///
    /// # Safety
    /// As [`Module::kernel`], with so many bytes of shared memory, or as few as [`Kernel::with_shared`] is given.
    /// Every thread of the function calls `griddepcontrol.wait`, where the target has it, before it writes
    /// anything and before it reads what kernels write.
    pub unsafe fn early_kernel<P: Parameters>(
        &self,
        name: &'static str,
        shared: u32,
    ) -> Result<Kernel<P>, CudaError> {
        // SAFETY: the caller's promise.
        let mut kernel = unsafe { self.kernel(name) }?;
        use sys::CUfunction_attribute::{
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as MOST,
            CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT as CARVEOUT,
        };
        let bytes = shared.min(i32::MAX as u32) as i32;
        // A multiprocessor runs kernels side by side only under one split of its memory: all that start
        // early ask for the same one, which has the most shared memory.
        for (attribute, value) in [(MOST, bytes), (CARVEOUT, 100)] {
            // SAFETY: the function was just found.
            unsafe {
                result::function::set_function_attribute(kernel.function.0, attribute, value)
            }
            .map_err(|error| CudaError::Kernel {
                name,
                problem: format!("{shared} bytes of shared memory: {}", super::driver::said(error)),
            })?;
        }
        kernel.shared = shared;
        if self.device.inner.context.capability.0 >= 9 {
            kernel.start = Start::Early;
        }
        Ok(kernel)
    }
}

impl<P> Kernel<P> {
    /// The same, whose launches ask for `shared` bytes of shared memory.
    ///
    /// # Panics
    /// When those are more than its own do.
    #[must_use]
    pub fn with_shared(&self, shared: u32) -> Kernel<P> {
        let (name, most) = (self.name, self.shared);
        assert!(shared <= most, "`{name}` has {most} bytes of shared memory, not {shared}");
        Kernel { shared, ..self.clone() }
    }

    pub(super) fn device(&self) -> &DeviceId {
        &self.device
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    pub(super) fn function(&self) -> sys::CUfunction {
        self.function.0
    }

    /// Bytes of shared memory that a launch asks for.
    pub(super) fn shared(&self) -> u32 {
        self.shared
    }

    pub(super) fn start(&self) -> Start {
        self.start
    }
}

/// Bytes of each parameter of a function.
fn sizes(function: sys::CUfunction) -> Result<Vec<usize>, DriverError> {
    let mut sizes = Vec::new();
    loop {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: the function is loaded; the driver writes two numbers.
        let asked = unsafe {
            sys::cuFuncGetParamInfo(function, sizes.len(), &raw mut offset, &raw mut size)
        };
        match asked.result() {
            Ok(()) => sizes.push(size),
            // There are no more.
            Err(DriverError(sys::CUresult::CUDA_ERROR_INVALID_VALUE)) => return Ok(sizes),
            Err(error) => return Err(error),
        }
    }
}

/// Only here is said what a number is: of each, all bytes are allowed.
mod sealed {
    /// See the module.
    pub trait Sealed {}
}

/// A number that kernels take by value; any bytes are one, and zero bytes are zero.
pub trait Number: Element + sealed::Sealed {
    /// Its bytes, at the start of a word.
    fn word(self) -> u64;
}

/// Parameters of a kernel that reads a slice: `const T *elements, unsigned long long len`.
pub struct Reads<T>(PhantomData<fn(T)>);

/// Parameters of a kernel that writes a slice: `T *elements, unsigned long long len`.
pub struct Writes<T>(PhantomData<fn(T)>);

/// What one argument of a launch becomes in the kernel's source: [`Reads`], [`Writes`] or a
/// [`Number`].
pub trait Parameter: 'static {
    /// What a launch gives.
    type Given<'j>;

    /// Bytes of each of its words.
    const SIZES: &'static [usize];

    /// Appends its words.
    fn words(given: Self::Given<'_>, words: &mut Words);
}

/// All parameters of a kernel: a tuple of [`Parameter`]s.
pub trait Parameters: 'static {
    /// What a launch gives.
    type Given<'j>;

    /// Bytes of each word of each parameter.
    const SIZES: &'static [&'static [usize]];

    /// Appends their words.
    fn words(given: Self::Given<'_>, words: &mut Words);
}

/// Most words of a kernel.
const MOST: usize = 32;

/// The words of one launch.
#[derive(Default)]
pub struct Words {
    words: [u64; MOST],
    len: usize,
}

impl Words {
    fn push(&mut self, word: u64) {
        self.words[self.len] = word;
        self.len += 1;
    }

    /// The address of each, as the driver takes them.
    pub(super) fn pointers(&mut self) -> [*mut c_void; MOST] {
        self.words.each_mut().map(|word| std::ptr::from_mut(word).cast())
    }
}

impl<T: Element> Parameter for Reads<T> {
    type Given<'j> = CudaSlice<'j, T>;
    const SIZES: &'static [usize] = &[8, 8];

    fn words(given: CudaSlice<'_, T>, words: &mut Words) {
        words.push(given.address());
        words.push(given.len() as u64);
    }
}

impl<T: Element> Parameter for Writes<T> {
    type Given<'j> = CudaSliceMut<'j, T>;
    const SIZES: &'static [usize] = &[8, 8];

    fn words(given: CudaSliceMut<'_, T>, words: &mut Words) {
        words.push(given.address());
        words.push(given.len() as u64);
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl sealed::Sealed for $number {}

        impl Number for $number {
            fn word(self) -> u64 {
                let mut word = [0; 8];
                let bytes = self.to_ne_bytes();
                word[..bytes.len()].copy_from_slice(&bytes);
                u64::from_ne_bytes(word)
            }
        }

        impl Parameter for $number {
            type Given<'j> = $number;
            const SIZES: &'static [usize] = &[size_of::<$number>()];

            fn words(given: $number, words: &mut Words) {
                words.push(given.word());
            }
        }
    )*};
}

numbers!(u8, u16, u32, u64, i8, i16, i32, i64, f32, f64);

macro_rules! tuples {
    ($($($name:ident)*;)*) => {$(
        impl<$($name: Parameter),*> Parameters for ($($name,)*) {
            type Given<'j> = ($($name::Given<'j>,)*);
            const SIZES: &'static [&'static [usize]] = &[$($name::SIZES),*];

            #[allow(non_snake_case)] // the type parameters name the entries
            fn words(given: Self::Given<'_>, words: &mut Words) {
                let ($($name,)*) = given;
                $($name::words($name, words);)*
            }
        }
    )*};
}

tuples! {
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
    A B C D E F G;
    A B C D E F G H;
    A B C D E F G H I;
    A B C D E F G H I J;
    A B C D E F G H I J K;
    A B C D E F G H I J K L;
    A B C D E F G H I J K L M;
    A B C D E F G H I J K L M N;
    A B C D E F G H I J K L M N O;
    A B C D E F G H I J K L M N O Q;
    A B C D E F G H I J K L M N O Q R;
    A B C D E F G H I J K L M N O Q R S;
    A B C D E F G H I J K L M N O Q R S T;
}
