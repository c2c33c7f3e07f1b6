"""Word lists and phrases that every plot of the story generator shares.

The lists are ours. Order matters a little: earlier entries are picked somewhat more often (see
`zipf` in stories.py), so that a model trained on the text has clear first choices.

In phrases, `(a|b)` is a choice, `{key}` a variable of the story, `{Key}` the same with a capital.
"""

GIRLS = """
Lily Mia Anna Sara Ella Rosa Nina Lucy Molly Daisy Emma Amy Ruby Zoe Kate Maya Ivy Bella Clara
Hanna Lola Jane Tina Poppy Alma Nora Eva Lena Mary Sue Vera Dora Fay Gina Holly Iris June Kim
Leah Mina Olive Pia Rita Sofia Tara Una Wendy Yara
""".split()

BOYS = """
Tom Ben Max Sam Leo Jack Tim Finn Oscar Noah Adam Billy Carl Dan Eric Felix Gus Henry Ivan Joe
Kevin Luke Mark Ned Otto Paul Rick Simon Theo Victor Will Zack Alan Bob Charlie David Emil Frank
George Hugo Jim Karl Lars Milo Nick Owen Peter Ray
""".split()

PETS = """
Pip Momo Coco Bobo Nibbles Fluffy Tilly Toto Benny Rusty Hazel Pepper Ginger Bruno Dot Ziggy
Muffin Sunny Bibi Tiko Honey Waffle Bingo Peanut Misty Button Fern Tuck Jolly Lulu Kiki Pogo
""".split()

# Syllables for names that no list has: from them a model learns to copy any name it is given.
SYLLABLES = "ka lo mi ra ti no ze bu fi ta ri so le ma ne du vi po na li ro to me sa ki lu".split()

# kind, home, food it loves, word for its hands
ANIMALS = [
    ("rabbit", "burrow", "carrots", "paws"), ("bear", "cave", "honey", "paws"),
    ("fox", "den", "berries", "paws"), ("mouse", "nest of straw", "cheese", "paws"),
    ("squirrel", "hollow tree", "nuts", "paws"), ("duck", "house of reeds", "bread", "wings"),
    ("frog", "house of reeds", "berries", "hands"),
    ("hedgehog", "nest of leaves", "apples", "paws"),
    ("cat", "cottage", "fish", "paws"), ("puppy", "dog house", "bones", "paws"),
    ("pig", "barn", "corn", "feet"), ("turtle", "house of stones", "leaves", "feet"),
    ("elephant", "house of leaves", "bananas", "feet"),
    ("monkey", "tree house", "bananas", "hands"),
    ("lion", "cave", "soup", "paws"), ("goat", "barn", "grass", "feet"),
    ("owl", "old oak tree", "seeds", "wings"), ("penguin", "house of snow", "fish", "wings"),
    ("dog", "dog house", "bones", "paws"), ("bird", "nest", "seeds", "wings"),
    ("dragon", "cave", "pancakes", "claws"), ("horse", "barn", "apples", "feet"),
]

CHILD_PLACES = [
    "a small village", "a little house near the woods", "a quiet town by the sea", "a big city",
    "a small house on a hill", "a yellow house with a garden", "an old farm house",
    "a village by the river", "a tall house in the middle of town",
    "a little cottage under the mountains",
]

ANIMAL_PLACES = [
    "a green forest", "a big forest", "a quiet valley", "a sunny meadow",
    "the woods behind the hill", "a forest by a lake", "a warm jungle", "the fields near a farm",
    "an old garden", "a forest full of tall trees",
]

TRAITS = "kind happy curious clever cheerful brave gentle friendly quiet funny shy smart".split()

CHILD_HOBBIES = [
    "play outside", "sing songs", "draw pictures", "run and jump", "read books", "ride a bike",
    "dance in the rain", "look at the stars", "climb trees", "play with blocks",
    "help in the kitchen", "collect pretty stones", "tell stories", "play in the sand",
]

ANIMAL_HOBBIES = [
    "play in the grass", "eat {food}", "sing songs", "roll down the hill", "look at the stars",
    "explore the woods", "splash in the water", "run with the wind", "sleep in the sun",
    "collect pretty stones", "tell stories", "chase butterflies",
]

PARENTS = [("mom", "she"), ("dad", "he"), ("grandma", "she"), ("mother", "she"), ("grandpa", "he"),
           ("father", "he")]

SHE = dict(he="she", him="her", his="her", himself="herself")
HE = dict(he="he", him="him", his="his", himself="himself")

# Phrases by name, usable as {name} anywhere. `who` is set by the engine: the hero's name, or the
# whole introduction when the story starts without an opening sentence.
PHRASES = dict(
    open="(Once upon a time, there was {intro}.|Once upon a time, in {place}, there lived {intro}."
         "|Once upon a time there was {intro}.|Once upon a time, {intro} lived in {place}."
         "|There once was {intro}.|There was once {intro} who lived in {place}."
         "|In {place} there lived {intro}.|Long ago, there was {intro}."
         "|Once there was a {size} {kid}. {His} name was {H}."
         "|There was once a {size} {kid} who lived in {place}. {His} name was {H}."
         "|{H} was a {size} {kid} from {place}.)",
    intro="(a {size} {kid} named {H}|a {trait} {kid} named {H}|a {size} {kid} called {H})",
    likes="({He} (loved|liked) to {hobby}.|{He} was very {trait2} and (loved|liked) to {hobby}."
          "|{He} lived with {his} {parent} in a (little |cozy |){home}."
          "|Every day, {he} (loved|liked) to {hobby}."
          "|{He} was {trait2}, and everyone liked {him}.)",
    oneday="One (|sunny |fine |warm |bright |quiet |beautiful )(day|morning|afternoon),",
    glad="(was (so |very |)(happy|glad)|smiled (a big smile|from ear to ear)"
         "|jumped (up and down |)with joy|clapped {his} {hands} and laughed)",
    sad="(was (so |very |)sad|began to cry|felt (very |)sad|had tears in {his} eyes)",
    notice="(\"(What is wrong|Why are you so sad|What is the matter), {H}?\" asked {F}.)",
    thanks="(\"Thank you(| so much|, {F}|, {F}! You are a good friend)!\" said {H}.)",
    end="({night}|The end.|)",
    fsad="(was sad|had tears in {fhis} eyes|looked down)",
    night="(That night, {H} (went to bed|fell asleep) (with a smile on {his} face|feeling "
          "(happy|proud|safe and warm)).|At the end of the day, {H} was (tired but happy"
          "|very proud)."
          "|When the moon came up, {H} was already fast asleep, dreaming (sweet dreams"
          "|of the next day).)",
    moral="(({H} learned|And so {H} learned|That day, {H} learned) that {lesson}."
          "|(From that day on,|After that,|And ever since,) {H} "
          "(always remembered|knew|never forgot) that {lesson}.)",
    friends="(From that day on, {H} and {F} were (best|good) friends."
            "|{H} and {F} (played together|were happy) (until the sun went down|all day long)."
            "|And {H} and {F} stayed friends (for ever|forever and ever).)",
    finish="({moral}|{moral}|{night}|{night} {moral}|{moral} The end.|{night} The end.)",
)
