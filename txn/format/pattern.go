package format

// PatternVersion is the format version of a schema record with patterns. Clients that know only
// [Version] would not notify columns that match one, so they must refuse the record.
const PatternVersion = 2

// BulkVersion is the format version of the schema record of a table that transactions may prewrite
// in bulk. Clients that do not know it would read wrong data.
const BulkVersion = 3

// Pattern returns the column that stands, in registrations of observers, for all columns of a
// family whose qualifiers begin with prefix. With an empty prefix it is the whole family. Its
// text is family*:prefix; the name of a family contains no *.
func Pattern(family, prefix string) Column { return Column{Family: family + "*", Qualifier: prefix} }
