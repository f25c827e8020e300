"""The built-in motions, each with key points for and against: what there is to say, not who is
right."""

from __future__ import annotations

Motion = tuple[str, tuple[str, ...], tuple[str, ...]]
"""A motion, its key points for, its key points against. Key points are clauses without a full
stop."""

MOTIONS: tuple[Motion, ...] = (
    (
        "Cities should close their centres to private cars.",
        (
            "cleaner air lowers asthma rates among children",
            "streets without traffic invite walking and cycling",
            "buses and trams keep their timetable without jams",
        ),
        (
            "small shops lose customers who arrive by car",
            "disabled residents depend on driving to their door",
            "traffic merely moves into neighbouring suburbs",
        ),
    ),
    (
        "Homework should be abolished in primary schools.",
        (
            "young pupils need evenings for sleep and play",
            "families with little time cannot support assignments",
            "early homework hardly improves test results",
        ),
        (
            "practice at home strengthens reading fluency",
            "parents follow progress through daily exercises",
            "small duties build independent working habits",
        ),
    ),
    (
        "Voting in national elections should be compulsory.",
        (
            "high turnout gives parliaments a broader mandate",
            "parties must address poor and young citizens",
            "campaigns spend less money on mobilising supporters",
        ),
        (
            "abstaining is itself a legitimate political choice",
            "uninterested voters mark ballots at random",
            "fines for absence burden struggling households",
        ),
    ),
    (
        "Zoos should be phased out.",
        (
            "captive animals develop disturbed behaviour in cages",
            "documentaries teach wildlife better than enclosures",
            "money for habitats protects whole species",
        ),
        (
            "breeding programmes saved species from extinction",
            "visitors who meet animals donate to conservation",
            "veterinary research relies on observed populations",
        ),
    ),
    (
        "Remote work should be the default for office jobs.",
        (
            "employees save hours of commuting every week",
            "companies recruit talent from distant regions",
            "quiet rooms at home support concentrated tasks",
        ),
        (
            "new colleagues learn slowly without shared desks",
            "loneliness grows when meetings happen on screens",
            "cramped flats make poor offices for junior staff",
        ),
    ),
    (
        "Single-use plastic packaging should be banned.",
        (
            "plastic waste kills seabirds and turtles",
            "refill systems become cheap once they are standard",
            "microplastic particles enter drinking water",
        ),
        (
            "sealed packaging keeps fresh food from spoiling",
            "glass and paper need more energy to transport",
            "sterile medical supplies require disposable wrapping",
        ),
    ),
    (
        "Public transport should be free of charge.",
        (
            "low earners reach jobs without paying fares",
            "fewer cars reduce congestion and emissions",
            "removing ticket machines cuts administrative costs",
        ),
        (
            "lost fare revenue delays new lines and repairs",
            "free rides mostly replace walking and cycling",
            "crowded trains discourage existing passengers",
        ),
    ),
    (
        "Schools should require uniforms.",
        (
            "uniforms hide income differences between classmates",
            "mornings become easier without clothing disputes",
            "strangers on school grounds are recognised quickly",
        ),
        (
            "clothing lets teenagers express their identity",
            "official suppliers charge families high prices",
            "bullies find other targets than garments",
        ),
    ),
    (
        "Nuclear power should be part of the energy transition.",
        (
            "reactors deliver electricity without carbon emissions",
            "steady output balances windless winter nights",
            "compact plants occupy very little land",
        ),
        (
            "construction delays make reactors extremely expensive",
            "radioactive waste needs storage for millennia",
            "solar panels and batteries expand faster",
        ),
    ),
    (
        "Every citizen should receive an unconditional basic income.",
        (
            "a guaranteed income frees people from extreme poverty",
            "simple payments replace costly welfare bureaucracy",
            "artists and founders can risk new projects",
        ),
        (
            "universal payments demand steep tax increases",
            "some workers would leave unpleasant essential jobs",
            "targeted benefits help needy families more",
        ),
    ),
    (
        "Smartphones should be banned during the school day.",
        (
            "pupils concentrate better without notifications",
            "breaks become conversations instead of scrolling",
            "cyberbullying loses its stage in classrooms",
        ),
        (
            "phones are useful instruments for quick research",
            "children must practise responsible screen habits",
            "parents want to reach them in emergencies",
        ),
    ),
    (
        "Museums should return colonial artefacts to their countries of origin.",
        (
            "looted objects were taken under military force",
            "communities need their heritage for living traditions",
            "replicas and loans keep exhibitions possible",
        ),
        (
            "large collections let visitors compare cultures",
            "unclear ownership makes rightful recipients uncertain",
            "fragile pieces require expensive climate control",
        ),
    ),
    (
        "The working week should be shortened to four days.",
        (
            "rested employees produce as much in fewer hours",
            "parents gain a weekday for caring duties",
            "offices use less energy when closed longer",
        ),
        (
            "hospitals and care homes cannot shorten shifts",
            "compressed days increase stress and mistakes",
            "small firms must hire costly additional staff",
        ),
    ),
    (
        "Space exploration deserves more public money.",
        (
            "satellites grew out of early rocket programmes",
            "asteroid tracking protects humanity from impacts",
            "ambitious missions inspire young engineers",
        ),
        (
            "hunger and disease need urgent spending on earth",
            "private companies already launch rockets cheaply",
            "robotic telescopes answer questions at lower cost",
        ),
    ),
    (
        "Wealthy countries should accept more refugees.",
        (
            "persecuted people have a moral claim to safety",
            "ageing economies gain young workers and taxpayers",
            "neighbouring poor states carry an unfair burden",
        ),
        (
            "rapid arrivals overwhelm housing and schools",
            "aid near conflict zones reaches many more victims",
            "failed integration feeds resentment and extremism",
        ),
    ),
    (
        "Sugary drinks should be taxed.",
        (
            "higher prices lower consumption among teenagers",
            "diabetes treatment costs burden health insurance",
            "producers reformulate recipes with less sugar",
        ),
        (
            "poor households pay the largest share of such taxes",
            "shoppers switch to other sweet snacks",
            "adults are free to decide about their diet",
        ),
    ),
    (
        "Social media platforms should verify the identity of every user.",
        (
            "verified names discourage threats and harassment",
            "automated accounts could no longer distort elections",
            "fraud victims could trace their offenders",
        ),
        (
            "dissidents need anonymity against authoritarian regimes",
            "identity databases attract hackers and leaks",
            "honest users without documents would be excluded",
        ),
    ),
    (
        "Animal testing of cosmetics should be forbidden worldwide.",
        (
            "cell cultures predict skin reactions reliably",
            "vanity products cannot justify animal suffering",
            "bans in large markets did not harm sales",
        ),
        (
            "rare allergies only appear in complete organisms",
            "chemical safety law demands established evidence",
            "unequal bans push laboratories into secrecy",
        ),
    ),
    (
        "Cash should be abolished.",
        (
            "digital payments expose tax evasion and bribery",
            "robberies decline when tills hold no banknotes",
            "printing and guarding coins costs shops money",
        ),
        (
            "elderly customers rely on banknotes every day",
            "power failures would paralyse all commerce",
            "every purchase would become visible to banks",
        ),
    ),
    (
        "Universities should abolish tuition fees.",
        (
            "talented students from poor homes could enrol",
            "graduates start careers without crushing debt",
            "educated societies recover costs through taxes",
        ),
        (
            "taxpayers without degrees would subsidise academics",
            "fees finance smaller classes and laboratories",
            "paying students finish their courses sooner",
        ),
    ),
    (
        "Meat consumption should be reduced by law.",
        (
            "cattle farming emits enormous amounts of methane",
            "crops for feed could nourish hungry people",
            "crowded stables breed resistant bacteria",
        ),
        (
            "governments must not dictate private meals",
            "grazing preserves meadows and rural landscapes",
            "taxes on emissions work without prohibitions",
        ),
    ),
    (
        "Juries should be replaced by professional judges.",
        (
            "trained lawyers understand complicated evidence",
            "written reasons allow verdicts to be appealed",
            "media coverage easily influences laypeople",
        ),
        (
            "ordinary peers bring community values into court",
            "twelve opinions dilute individual prejudice",
            "citizens trust justice in which they take part",
        ),
    ),
    (
        "Autonomous cars should be allowed on all public roads.",
        (
            "computers never drive drunk or exhausted",
            "blind passengers gain independent mobility",
            "coordinated vehicles smooth traffic waves",
        ),
        (
            "sensors still fail in snow and heavy rain",
            "liability after crashes remains unresolved",
            "hacked fleets could endanger whole cities",
        ),
    ),
    (
        "Competitive sports should separate athletes by weight rather than by sex.",
        (
            "similar body mass makes fights comparable",
            "intersex athletes escape humiliating examinations",
            "mixed categories attract broader audiences",
        ),
        (
            "muscle strength differs even at equal weight",
            "women would lose podium places and sponsors",
            "endurance events hardly depend on mass",
        ),
    ),
    (
        "Artificial intelligence should be used to grade school essays.",
        (
            "pupils receive feedback within seconds",
            "identical standards apply to every essay",
            "teachers regain evenings for preparing lessons",
        ),
        (
            "algorithms reward formulaic phrases over ideas",
            "training texts carry hidden linguistic bias",
            "children write differently for a human reader",
        ),
    ),
    (
        "Advertising aimed at children should be prohibited.",
        (
            "toddlers cannot distinguish commercials from stories",
            "snack promotions raise childhood obesity",
            "constant wishes strain family budgets",
        ),
        (
            "advertisers finance free programmes for kids",
            "parents should teach critical viewing themselves",
            "influencers escape such rules across borders",
        ),
    ),
    (
        "Historic buildings should be protected even where housing is scarce.",
        (
            "demolished heritage can never be restored",
            "old quarters attract tourism and craftsmanship",
            "renovation wastes less concrete than rebuilding",
        ),
        (
            "protected facades block affordable new flats",
            "strict monuments law makes insulation impossible",
            "homeless families matter more than ornaments",
        ),
    ),
    (
        "Organ donation should be automatic unless a person objects.",
        (
            "waiting lists shrink when consent is presumed",
            "most people approve yet never register",
            "grieving relatives are spared a sudden decision",
        ),
        (
            "silence must not be treated as agreement",
            "transplant coordinators matter more than statutes",
            "distrust could make many citizens object",
        ),
    ),
    (
        "Night flights over residential areas should be prohibited.",
        (
            "aircraft noise raises blood pressure in sleepers",
            "pupils under flight paths read more slowly",
            "cargo can usually travel by evening trains",
        ),
        (
            "express medicine depends on overnight delivery",
            "airports would dismiss thousands of workers",
            "delayed passengers would be stranded abroad",
        ),
    ),
    (
        "Coding should be a compulsory subject in secondary schools.",
        (
            "programming trains logical problem solving",
            "digital professions offer secure employment",
            "girls discover computing before stereotypes settle",
        ),
        (
            "crowded curricula would squeeze music and art",
            "specific languages become obsolete quickly",
            "qualified informatics teachers are missing",
        ),
    ),
    (
        "Rent increases should be capped by the state.",
        (
            "tenants stay near their schools and friends",
            "landlords profit from scarcity without effort",
            "stable rents leave money for local shops",
        ),
        (
            "investors stop building apartments under caps",
            "owners postpone repairs when revenue stagnates",
            "wealthy tenants keep large cheap flats forever",
        ),
    ),
    (
        "Scientific articles should be free to read for everyone.",
        (
            "taxpayers already financed the underlying research",
            "doctors in poor countries need current findings",
            "errors surface faster with many readers",
        ),
        (
            "author charges exclude researchers without grants",
            "predatory journals flourish when authors pay",
            "editors and reviewers require reliable funding",
        ),
    ),
)
