//! `strftime_now`: the date for templates, in UTC.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

/// The time as Python's `datetime.now(UTC).strftime(format)` writes it.
///
/// # Errors
/// A directive that is not among those of [`format`].
pub(super) fn strftime_now(pattern: &str) -> Result<String, String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    format(pattern, now.map_or(0, |since| since.as_secs()))
}

/// `seconds` since 1970 by `pattern`, with the directives `%Y %y %m %d %e %j %B %b %h %A %a %H %I
/// %M %S %p %F %T %Z %z %%`; a `-` before the letter leaves out leading zeros.
fn format(pattern: &str, seconds: u64) -> Result<String, String> {
    let days = seconds / 86_400;
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let month_name = MONTHS[month as usize - 1];
    // 1 January 1970 was a Thursday.
    let day_name = DAYS[((days + 3) % 7) as usize];
    let hour12 = (hour + 11) % 12 + 1;
    let day_of_year = days - days_before_year(year) + 1;

    let mut out = String::new();
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut directive = chars.next();
        let unpadded = directive == Some('-');
        if unpadded {
            directive = chars.next();
        }
        let mut number = |value: u64, width: usize| {
            let width = if unpadded { 0 } else { width };
            write!(out, "{value:0width$}").expect("strings take everything");
        };
        match directive {
            Some('Y') => number(year, 4),
            Some('y') => number(year % 100, 2),
            Some('m') => number(month, 2),
            Some('d') => number(day, 2),
            Some('j') => number(day_of_year, 3),
            Some('H') => number(hour, 2),
            Some('I') => number(hour12, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second, 2),
            Some('e') => out += &format!("{day:2}"),
            Some('B') => out += month_name,
            Some('b' | 'h') => out += &month_name[..3],
            Some('A') => out += day_name,
            Some('a') => out += &day_name[..3],
            Some('p') => out += if hour < 12 { "AM" } else { "PM" },
            Some('F') => out += &format!("{year:04}-{month:02}-{day:02}"),
            Some('T') => out += &format!("{hour:02}:{minute:02}:{second:02}"),
            Some('Z') => out += "UTC",
            Some('z') => out += "+0000",
            Some('%') => out.push('%'),
            other => {
                let letter = other.map(String::from).unwrap_or_default();
                return Err(format!("strftime_now does not know `%{letter}`"));
            }
        }
    }
    Ok(out)
}

/// Days from 1 January 1970 to 1 January of `year`.
fn days_before_year(year: u64) -> u64 {
    let leaps = |year: u64| year / 4 - year / 100 + year / 400;
    (year - 1970) * 365 + leaps(year - 1) - leaps(1969)
}

/// Year, month (from 1) and day (from 1) of a day since 1970 in the Gregorian calendar.
fn civil(days: u64) -> (u64, u64, u64) {
    let mut year = 1970 + days / 366;
    while days_before_year(year + 1) <= days {
        year += 1;
    }
    let leap = days_before_year(year + 1) - days_before_year(year) == 366;
    let lengths = [31, if leap { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut day = days - days_before_year(year);
    let mut month = 1;
    for length in lengths {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    (year, month, day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_pythons() {
        // datetime.fromtimestamp(t, UTC).strftime(...)
        let all = "%Y-%m-%d %j %H:%M:%S %a %b %I%p";
        assert_eq!(format(all, 0).unwrap(), "1970-01-01 001 00:00:00 Thu Jan 12AM");
        assert_eq!(format(all, 951_782_399).unwrap(), "2000-02-28 059 23:59:59 Mon Feb 11PM");
        assert_eq!(format(all, 951_868_800).unwrap(), "2000-03-01 061 00:00:00 Wed Mar 12AM");
        assert_eq!(format(all, 1_735_603_200).unwrap(), "2024-12-31 366 00:00:00 Tue Dec 12AM");
        assert_eq!(format("%-d %B %y, %A %%", 1_720_000_000).unwrap(), "3 July 24, Wednesday %");
        assert_eq!(format("%F %T %e", 1_720_000_000).unwrap(), "2024-07-03 09:46:40  3");
    }

    #[test]
    fn an_unknown_directive_is_named() {
        assert_eq!(format("%Q", 0).unwrap_err(), "strftime_now does not know `%Q`");
        assert_eq!(format("50%", 0).unwrap_err(), "strftime_now does not know `%`");
    }
}
