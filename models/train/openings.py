"""How conversations begin: system messages, and first words of a question that the target itself goes on with."""

import random


def listed(text):
    return [" ".join(part.split()) for part in text.split("|")]


# None is the chat template's own.
SYSTEMS = (
    [None] * 12
    + [""]
    + listed(
        """
You are a helpful assistant. | You are a helpful assistant. Answer briefly. |
You are a careful assistant. Think step by step before you answer. |
You are an expert programmer who writes clean, correct code with short explanations. |
You are a friendly teacher who explains things simply. | You are a creative writer. |
You are a math tutor. Show the steps and state the final answer. |
Answer in plain text, in at most three sentences. | Respond only with valid JSON. |
You are an editor. Improve the text that you are given and keep its meaning. |
You are a travel guide who knows every city. | You summarize texts faithfully and concisely. |
You are a knowledgeable historian and scientist.
"""
    )
)

# Behind these words the target makes up the rest. "" leaves it all of the question.
FREE = [""] * 6 + listed(
    """
What | How | Why | Can you | Could you | I need | I want to | Help me | Please | Is it | Write | Explain |
Give me | List | Describe | Compare | Tell me | Create | Suggest | What is the difference between | How do I |
What are some | Why do | Who | When | Where | Which | My | I am | I have | Should I | Does |
Write a Python function that | Write a Python function to | Write a Python program that | Implement a function |
Write a function in JavaScript that | Write a SQL query that | Write a C++ program that | Fix this Python code: |
Write a class in Python | Explain what this code does: | def | Write a Rust function that |
Write a bash command that | Complete this Python function: | How do I sort | Write a regular expression that |
Write a short story about | Write a story in which | Once upon a time | Write a poem about | Write a letter to |
Continue this story: | Write a dialogue between | Write a fable about | Invent a character who | A train |
A shop sells | If x | Solve | Calculate | A rectangle has | What is the sum of | Tom has | Maria buys |
A recipe needs | A car drives | How many | There are | A farmer | What is 15% of | Find the value of |
If a worker earns | Simplify | What comes next: | A box contains | Convert | What is 7 times | Divide |
Summarize this text: | Summarize the following paragraph in one sentence: | Summarize the following article: |
Here is a text: | Rewrite this sentence: | Rewrite the following paragraph in simpler words: |
Condense this into two sentences: | What is the main idea of this passage? | Write a headline for this news: |
Make this text shorter: | Extract the key facts from: | Proofread this: | Translate | List five | List ten |
List three | Give me a list of | Name three | Make a list of | What are the top | Make a checklist for |
Write a step-by-step guide to | Write bullet points about | Give five tips for | Give me ten ideas for |
Write instructions for | Plan a | Write a JSON object that describes | Return JSON with the fields |
Give me a JSON array of | Create a JSON | Convert this to JSON: | As JSON: | Make a table of |
Give an example of YAML | Write HTML for | Explain how | Explain why | Explain the concept of |
Explain to a child | What does it mean | In simple terms, what is | How does | What causes | Define |
What happens when | Write an email to | Write a review of | Write a speech | Write a tweet about |
Write a product description for | Give me advice | What would you recommend
"""
)

# Behind these a subject follows.
ABOUT = listed(
    """
Tell me about {} | Tell me something interesting about {} | What is {}? | What can you tell me about {}? |
Explain {} | Explain {} in simple terms | Explain {} to a beginner | How does {} work? | Why is {} important? |
Give me three facts about {} | Write a paragraph about {} | Write a short story about {} | Write a poem about {} |
List five things to know about {} | List the pros and cons of {} | Make a bulleted list about {} |
Describe {} as a JSON object | Create a JSON object about {} | Give me a list of questions about {} |
Write a quiz about {} | What is the history of {}? | What are common mistakes with {}? | Give tips about {} |
Write an essay about {} | Write a dialogue about {} | Summarize what is known about {} | I want to learn about {} |
How do I start with {}? | Compare {} with | Write a Python class for {} | Write a Python function about {} that |
What are the parts of {}? | Who is interested in {}? | Give an overview of {} | What is an example of {}? |
Teach me about {} | Describe {} | How has {} changed over time? | What do people say about {}?
"""
)

SUBJECTS = listed(
    """
bread | coffee | tea | cheese | chocolate | salt | sourdough | gardening | roses | trees | bees | cats | dogs |
horses | whales | owls | spiders | dinosaurs | volcanoes | earthquakes | rivers | oceans | clouds | rain | snow |
the moon | the sun | Mars | black holes | gravity | light | sound | electricity | batteries | engines | bicycles |
trains | airplanes | ships | bridges | houses | paper | glass | steel | plastic | money | taxes | savings |
budgets | insurance | jobs | interviews | meetings | email | passwords | the internet | computers | robots |
phones | cameras | maps | clocks | calendars | music | the piano | the guitar | jazz | opera | painting |
photography | theater | movies | novels | poetry | fairy tales | chess | football | tennis | swimming | running |
yoga | sleep | dreams | memory | stress | happiness | friendship | marriage | parenting | school | exams |
languages | grammar | spelling | history | ancient Rome | ancient Egypt | the Middle Ages | the Renaissance |
the French Revolution | the First World War | democracy | elections | laws | human rights | climate change |
recycling | solar power | wind power | nuclear power | water | forests | deserts | islands | mountains | Paris |
London | Tokyo | India | Brazil | Kenya | Canada | cooking | soup | pasta | rice | salad | breakfast | vitamins |
the heart | the brain | blood | bones | vaccines | viruses | bacteria | cells | DNA | evolution | atoms |
chemistry | algebra | fractions | percentages | prime numbers | triangles | probability | statistics | graphs |
sorting | recursion | lists | strings | dictionaries | databases | files | web pages | a stack | a queue |
a bank account | a shopping list | a library | a student | a movie | a restaurant | a hotel | a car | a pet shop |
a weather station | a lost key | a brave mouse | a lonely dragon | a lighthouse keeper | a secret door |
a talking cat | two sisters | an old king | a pirate | a time machine | a snowman | a detective | a wizard |
a spaceship | a birthday party | a long journey
"""
)


def openings(count, seed):
    """`count` pairs of a system message and the first words of a question."""
    draw = random.Random(seed)
    for _ in range(count):
        words = draw.choice(FREE) if draw.random() < 0.6 else draw.choice(ABOUT).format(draw.choice(SUBJECTS))
        yield draw.choice(SYSTEMS), words
