"""Plots about trips, pets, quarrels and plain good days.

See stories.py for the language they are written in.
"""

from plots import plot

TRIPS = [
    ("where", "saw1", "saw2", "do", "mishap", "fix", "snack"),
    ("to the park",
     "(two white ducks on the pond|a squirrel that ran up a tree|a man with a red balloon)",
     "(a big green frog|a dog that could catch a ball|many yellow flowers)",
     "(went down the slide|played on the swings|ran over the soft grass)",
     "{H} fell and hurt {his} knee",
     "(blew on the knee until it was better|put a leaf on the knee, and it felt better)",
     "(an apple|a cold ice cream|some bread and cheese)"),
    ("to the beach",
     "(a white bird on a rock|a ship far out on the water|a crab that walked to the side)",
     "(a pink shell|a long green plant from the sea|a starfish)",
     "(dug a deep hole in the sand|jumped over the waves|looked for shells)",
     "a wave took one of {his} shoes",
     "(ran into the water and got the shoe back|used a long stick to get the shoe)",
     "(a sweet orange|some juice|bread with butter)"),
    ("to the farm", "(a cow with a bell|three pink pigs in the mud|a hen with six yellow chicks)",
     "(a brown horse|a goat with a beard|a black sheep)",
     "(gave hay to the horse|looked for eggs in the straw|sat on the big tractor)",
     "a goat ate {his} hat",
     "(made a new hat out of straw|laughed so much that {H} had to laugh too)",
     "(fresh milk|a warm egg|bread and honey)"),
    ("to the market",
     "(red apples and yellow pears|a man who made toys out of wood|a woman with a basket full "
     "of fish)", "(a monkey on a string|a boy who played the flute|a big round cheese)",
     "(smelled all the flowers|tasted a bit of cheese|counted the melons)",
     "{H} dropped a bag, and all the oranges rolled away",
     "(picked up every orange|stopped the oranges with both feet)",
     "(a sweet bun|a few red grapes|a piece of cake)"),
    ("into the woods",
     "(a deer between the trees|a red bird that was singing|a snail with a yellow house)",
     "(a mushroom with white dots|a tree with a door in it|a tiny blue egg)",
     "(climbed over old logs|walked through the dry leaves|listened to the wind in the trees)",
     "{H} got stuck in the thorns",
     "(pulled the thorns away, one by one|held the thorns back with a stick)",
     "(some nuts|sweet berries|bread and jam)"),
    ("to the lake", "(a fish that jumped out of the water|a family of ducks|an old boat)",
     "(a blue dragonfly|a turtle on a log|the clouds in the water)",
     "(threw flat stones over the water|sat with their feet in the water|rowed in the old boat)",
     "{his} hat fell into the lake",
     "(got the hat out with a long branch|asked a duck, and the duck pushed the hat back)",
     "(a pear|cold tea|some cookies)"),
    ("to the top of the hill",
     "(the whole valley|the river like a silver ribbon|an eagle in the sky)",
     "(a goat on a rock|a cloud like a ship|a purple flower)",
     "(rolled down in the grass|flew a kite|shouted and heard their own voices)",
     "{H} was too tired to walk",
     "(sang a walking song, and the legs went by themselves|carried the bag for {him})",
     "(a red apple|bread and cheese|some water from the spring)"),
    ("to the fair",
     "(a clown with a big red nose|horses that went round and round|a man who walked on a rope)",
     "(a bear made of sugar|a very tall wheel|a band with drums)",
     "(rode on a wooden horse|threw a ball at some cans|danced to the music)",
     "the balloon of {H} flew away",
     "(gave {him} the other balloon|caught the string just in time)",
     "(a candy apple|some popcorn|a hot pancake)"),
]

GOODS = [
    ("lesson",), ("the best days are days with a friend",),
    ("there is so much to see if you look",), ("little troubles soon pass",),
    ("it is fun to see new things",), ("a day is nicer when we share it",),
]

# A trip with a friend: things seen, one small mishap.
plot("""
{open} {about}

{oneday} {who} and {with} went {where} together. (They were very excited.|The sun was
shining.|They sang on the way.|) (First they saw|There they saw|Soon they saw) {saw1}. "Look!"
said {H}. "(How nice|I like it here|I have never seen that before)!" Then they saw {saw2}. {F}
(laughed|smiled|was amazed). They {do}.

(Then|But then|Suddenly) {mishap}. "Oh no!" said {H} and {almost}. "(Wait|Do not cry|Do not
worry)," said {F}. {F} {fix}. "{thanks2}," said {H}, and {he} smiled again.

After that they (sat down in the shade|found a nice place to sit|were hungry) and (had|shared)
{snack}. "(What did you like best?|What was the best thing today?)" asked {F}. "{best}," said {H}.
(They walked home when the sun was low.|Soon it was time to go home.|They held hands all the way
home.) {finish}
""", trip=TRIPS, goods=GOODS, weight=3, almost=[
    ("almost",), ("almost cried",), ("sat down",), ("looked sad",),
], thanks=[
    ("thanks2",), ("You are a good friend",), ("Thank you",), ("That was clever",),
], best=[
    ("best",), ("That you were with me",), ("All of it",), ("The first thing that we saw",),
    ("How we laughed",),
], about=[
    ("about", "with"),
    ("{likes}", "{Fx}"),
    ("{His} best friend was {fintro}.", "{F}"),
    ("", "{Fx}"),
])

# A trip with a parent, and a question.
plot("""
{open} {likes}

({oneday} {his} {parent} said, "Get your (shoes|hat|coat), {H}! We are going {where}." {H} {glad}.
When they got there, {H}|{oneday} {who} and {his} {parent} went {where}. {H}) saw {saw1}.
"(Look|Oh, look), {parent}!" said {H}. They (stood still|stopped) and looked for a long time. Then
they saw {saw2}. "{q}" asked {H}. {His} {parent} thought for a moment. "{answer}," said {his}
{parent}.

They {do}. Then {mishap}. {H} {sad}. But {his} {parent} {fix}, and {H} laughed again. They sat
down and had {snack}. "Can we come here again?" asked {H}. "(Of course|Yes, soon|Any time you
like)," said {his} {parent}. {finish}
""", trip=TRIPS, goods=GOODS, q=[
    ("q", "answer"),
    ("Does everything have a name?",
     "Everything has a name, and some things wait for us to find it"),
    ("Why is the world so big?", "So that there is always something new to see"),
    ("Was it like this when you were small?", "Yes, only I was smaller, so it was even bigger"),
    ("Where does the sun go at night?", "It goes to wake up the others"),
    ("Can we take it home?", "No, its home is here, but you can draw it"),
])

# A pet finds a home.
plot("""
{open} {H} wanted a pet more than anything. "(Please|Please, please), can we have a pet?" {he}
asked every day. "(A pet is a lot of work|You must feed it every day)," said {his} {parent}.

{oneday} {who} heard a sound {where}. It was a {pet}! It was {state}. "You poor little thing,"
said {H}. {He} {care} and took it home. "May I keep it?" {he} asked. {His} {parent} looked at the
{pet}, and the {pet} looked back with big eyes. "{ok}," said {his} {parent}.

{H} called it {name}. Every day {he} gave it {pfood} and (a bowl of |fresh )water. One day, {name}
{bad}. {H} was (a little angry|not happy), but then {he} {calm}. "You are still small," said {H}.
"I will teach you." And {H} was patient, and {name} learned it.

Now they did everything together. {funny}. "You take good care of {name}," said {his} {parent}.
{finish}
""", hero="child", pet=[
    ("pet", "pfood", "bad", "funny"),
    ("puppy", "meat", "chewed on {his} best shoes",
     "When {H} came home, the puppy wagged its tail so hard that it fell over"),
    ("kitten", "fish", "climbed up the curtain and tore it",
     "The kitten slept on {his} feet every night"),
    ("little duck", "bread and peas", "swam in the soup pot",
     "When {H} walked down the street, the duck walked behind {him}"),
    ("baby goat", "hay", "ate a page of {his} book", "When {H} jumped, the goat jumped too"),
    ("parrot", "seeds", "said a rude word to grandma",
     "Every morning it called the name of {H} through the house"),
    ("rabbit", "carrots and grass", "dug a hole in the flower bed",
     "When {H} sang, the rabbit moved its ears"),
], where=[
    ("where", "state", "care"),
    ("under the stairs", "cold and hungry", "put it under {his} coat"),
    ("behind the house", "all alone", "talked to it softly"),
    ("in a box by the road", "wet from the rain", "dried it with {his} scarf"),
    ("in the bushes", "afraid", "held out {his} hand and waited"),
], ok=[
    ("ok",), ("Well, I think it has found a home",), ("Yes, but you must look after it",),
    ("All right. It looks as if it likes you",),
], name=[
    ("name",), ("Spot",), ("Biscuit",), ("Snowy",), ("Lucky",), ("Patch",), ("Socks",),
    ("Berry",), ("Noodle",),
], calm=[
    ("calm",), ("took a deep breath",), ("had to laugh",), ("saw its sad eyes",),
], wise=[
    ("lesson",), ("love means to take care of someone",), ("a friend needs time to learn",),
    ("a pet is a friend for every day",),
])

# A quarrel and how it ends.
plot("""
{open} {H} and {Fx} were best friends. {they_liked}

{oneday} they (had a fight|began to fight). {H} wanted to {w1}, but {F} wanted to {w2}. "You
{blame}!" shouted {H}. "I do not want to play with you any more!" said {F}. {H} went home and shut
the door. {F} went home too.

At home, {H} {alone}. It was so quiet. {H} looked at {keepsake} and thought about {F}.
"{parent_q}" asked {his} {parent}. {H} told {phim} everything. "{advice}," said {his} {parent}.
{H} put on {his} shoes and went out. On the (way|bridge) {he} met {F}, who was coming to see
{him}!

"I am sorry," they both said at the same time. Then they laughed. "First we can {w1}," said {F},
"and then we can {w2}." "No, first {w2}," said {H}, "and then {w1}." And they laughed again.
{friends} {finish}
""", want=[
    ("w1", "w2"),
    ("play ball", "build a tower"),
    ("go to the lake", "go to the woods"),
    ("play hide and seek", "draw pictures"),
    ("be pirates", "be knights"),
    ("climb the tree", "look for berries"),
    ("sing", "tell stories"),
    ("fly the kite", "dig in the sand"),
], blame=[
    ("blame",), ("always want to choose",), ("never listen to me",), ("never do what I like",),
], alone=[
    ("alone",), ("tried to play alone",), ("lay on the bed and looked at the wall",),
    ("sat by the window",),
], keepsake=[
    ("keepsake",), ("a picture that {F} had made for {him}",),
    ("a stone that they had found together",), ("the two cups on the table",),
], liked=[
    ("they_liked",), ("They did everything together.",),
    ("They lived next door and met every day.",),
    ("They liked the same games and the same food.",),
], parent_q=[
    ("parent_q",), ("Where is your friend today?",), ("Why are you so quiet?",),
    ("What happened?",),
], advice=[
    ("advice", "lesson"),
    ("The one who says sorry first is the braver one", "saying sorry is brave"),
    ("It is not important who was right", "a friend is worth more than being right"),
    ("Perhaps {F} is sitting at a window too", "after a fight, friends can make up again"),
])

# A plain good day, made of small scenes that go together in any order.
MORNING = [
    ("m",),
    ("In the morning, the sun came in through the window. {H} (jumped|got) out of bed and had "
     "(milk and bread|a big breakfast|an egg) for breakfast.",),
    ('{H} woke up early because a bird was singing. "Good morning, bird," said {H}. The bird '
     "sang even louder.",),
    ("{H} put on {his} (favorite|red|old) shirt, but it was inside out. {His} {parent} laughed "
     "and helped {him}.",),
    ('After breakfast, {his} {parent} asked, "What do you want to do today?" "I want to find '
     'something new," said {H}.',),
    ("{H} helped {his} {parent} make the bed. They pulled and pulled until it was smooth. "
     '"Well done," said {his} {parent}.',),
]
SCENES = [
    "{H} went outside. There was a big (puddle|hole|pile of leaves) in front of the house. "
    '{H} took three steps back, ran and jumped. "(Again|One more time)!" {he} shouted.',
    "{H} saw (an ant|a beetle) with a heavy (leaf|crumb). It went up a stone and fell down, "
    'and it tried again. "You are strong," said {H}, and {he} moved the stone out of the way.',
    '{Fi} came by with a (basket|bag). "What is in there?" asked {H}. '
    '"(Plums|Apples|Cookies) for my grandma," said {F}, "but there is one for you too." '
    "They ate and talked.",
    "An old man could not open his gate. {H} (pushed|lifted) it with all {his} strength, and "
    'the gate opened. "Thank you, young friend," said the old man, and he gave {him} a '
    "(pear|button|coin).",
    '{H} found a (feather|smooth stone|red leaf) and put it in {his} pocket. "This is for '
    '{parent}," {he} said.',
    'It began to rain. {H} and {F} ran under a big tree and listened to the drops. "It sounds'
    ' like (little feet|a song|someone who is cooking)," said {F}. Soon the sun came back.',
    "{H} heard music. {He} followed it around the corner, and there was a man with a "
    "(flute|drum|guitar). {H} danced, and the man played faster and faster until they both "
    "laughed.",
    "A (cat|dog) sat in the middle of the path and did not want to move. {H} sat down next to"
    ' it. They sat there for a while and looked at the clouds. "That one looks like (you|a '
    'fish|a cake)," said {H}.',
    '{H} wanted to pick a flower, but there was a bee on it. "You were here first," said {H}.'
    " {He} waited until the bee flew away, and then {he} only smelled the flower.",
    '{F} was trying to carry a big (box|pot|log). "Wait, I will help you," said {H}. With '
    'two, it was easy. "(Many hands make it light|Now it is half as heavy)," said {F}.',
    '{H} met a (little|small) (girl|boy) who was lost. "Where do you live?" asked {H}. "In '
    'the house with the (blue|red|green) door." {H} knew that house and walked there with '
    "the child.",
    "{H} and {F} made a little boat out of (bark|paper|a nut shell) and put it in the "
    'stream. It turned around twice and sailed away. "Goodbye, boat!" they called. "Say '
    'hello to the sea!"',
    "There was one cookie left on the plate. {H} looked at it, and {F} looked at it too. {H} "
    "broke it in two and gave {F} the bigger part.",
    '{H} dropped a cup, and the (milk|juice) went all over the floor. "That can happen," said'
    " {his} {parent}. They got a cloth and cleaned it up together.",
]
EVENING = [
    ("e",),
    ('In the evening, {H} told {his} {parent} about everything. "That was a good day," said '
     '{his} {parent}. "Yes," said {H}, "and tomorrow is a new one."',),
    ("When it got dark, {H} and {his} {parent} sat in front of the house and counted the stars "
     "until {H} fell asleep.",),
    ('For dinner there was (soup|rice|fish), and {H} ate two plates of it. "You must have done'
     ' a lot today," said {his} {parent}.',),
    ("{His} {parent} read a story, but {H} was asleep before the end of it.",),
    ("In bed, {H} thought of all the things that had happened. They were small things, but they"
     " were good things.",),
]
for n_scenes in (2, 3, 3):
    names = [f"s{i}" for i in range(n_scenes)]
    plot("{open} {likes} {His} best friend was {fintro}.\n\n"
         "(One day was a very good day.|This is what {H} did one day.|) {m}\n\n"
         + "\n\n".join("{%s}" % name for name in names) + "\n\n{e} {finish}",
         m=MORNING, e=EVENING, goods=GOODS, scenes=("pick", names, SCENES))
