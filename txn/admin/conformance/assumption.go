package conformance

import "context"

// A Class says what it means if a service does not keep an assumption.
type Class string

const (
	// Required is for what transactions are wrong or impossible without.
	Required Class = "required"
	// Optional is for what transactions work without: they avoid it, or only an error is
	// less clear. A service that does not keep it has a known limit.
	Optional Class = "optional"
)

// An Assumption is one property of a Bigtable service.
type Assumption struct {
	ID    string `json:"id"`    // stable name, for --only and in reports
	Group string `json:"group"` // heading of similar ones in the list
	Title string `json:"title"` // the property, in one sentence
	Class Class  `json:"class"` // required or optional
	// Used says which part of the library needs it, and which file.
	Used string `json:"used"`
	// Source is the public document that promises it, or "assumed" and what speaks for it.
	Source string `json:"source"`
	// Breaks says what happens to transactions on a service that does not keep it.
	Breaks string `json:"breaks"`
	// Advice says what to do then.
	Advice string `json:"advice"`

	// needs is the assumption without which the test of this one says nothing.
	needs string
	// needsDial and needsDenied: without this field of Config the test is left out.
	needsDial, needsDenied bool
	// cost is the maximum that the test sends.
	cost cost
	test func(context.Context, *trial) error
}

// cost is an upper bound of what a test sends and receives.
type cost struct {
	requests int
	bytes    int64
	// loops: concurrent tests repeat until the time or Config.Requests is used up.
	loops bool
	// times: what happens rarely needs this multiple of Config.Requests, and of Config.Duration
	// on a slow service. 0 is 1.
	times, patience int
	// waits is for how many times Config.Duration the test waits without requests.
	waits int
}

// simple is a test without concurrency of a few requests.
var simple = cost{requests: 10, bytes: 64 << 10}

// Public documents.
const (
	dataAPI     = "https://cloud.google.com/bigtable/docs/reference/data/rpc/google.bigtable.v2"
	adminAPI    = "https://cloud.google.com/bigtable/docs/reference/admin/rpc/google.bigtable.admin.v2"
	quotas      = "https://cloud.google.com/bigtable/quotas"
	writes      = "https://cloud.google.com/bigtable/docs/writes"
	reads       = "https://cloud.google.com/bigtable/docs/reads"
	filterDocs  = "https://cloud.google.com/bigtable/docs/using-filters"
	profiles    = "https://cloud.google.com/bigtable/docs/app-profiles"
	replication = "https://cloud.google.com/bigtable/docs/replication-overview"
	garbage     = "https://cloud.google.com/bigtable/docs/garbage-collection"
)

// Advice that several assumptions share.
const (
	otherService = "Do not use transactions on this service. If it is Cloud Bigtable, report it to its support with the output of -o json."
	routing      = "Use an app profile with single-cluster routing, and the same cluster for all clients. If the profile has that, do not use transactions on this service."
	avoided      = "Nothing: the library avoids it. Do not rely on it in your own code."
)
