package format

// Pattern returns the column that stands, in registrations of observers, for all columns of a
// family whose qualifiers begin with prefix. With an empty prefix it is the whole family. Its
// text is family*:prefix; the name of a family contains no *.
func Pattern(family, prefix string) Column { return Column{Family: family + "*", Qualifier: prefix} }
