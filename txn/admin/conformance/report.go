package conformance

import (
	"encoding/xml"
	"fmt"
	"io"
)

// A State is what a test found.
type State string

// The states.
const (
	// Kept: the test found nothing that contradicts the assumption.
	Kept State = "kept"
	// Limit: the service does not keep an optional assumption.
	Limit State = "limit"
	// Broken: the service does not keep a required assumption.
	Broken State = "broken"
	// Untested: the test could not be made. Detail says why.
	Untested State = "untested"
)

// A Result is what the test of one assumption found.
type Result struct {
	Assumption
	State    State   `json:"state"`                  // kept, limit, broken or untested
	Detail   string  `json:"detail"`                 // what the service did instead; empty if it keeps the assumption
	Requests int     `json:"requests"`               // requests that the test sent
	Bytes    int64   `json:"bytes" unit:"bytes"`     // keys and cells that it sent and received
	Seconds  float64 `json:"seconds" unit:"seconds"` // time that it took

	removed *RemovedCells
}

// A Report is what Run found.
type Report struct {
	Table        string        `json:"table"`                  // scratch table, which is removed
	Verdict      Verdict       `json:"verdict"`                // safe, limits, unsafe or incomplete
	Kept         []string      `json:"kept"`                   // ids of the assumptions that the service keeps
	Limits       []string      `json:"limits"`                 // ids of optional assumptions that it does not keep
	Broken       []string      `json:"broken"`                 // ids of required assumptions that it does not keep
	Untested     []string      `json:"untested"`               // ids of assumptions that could not be tested
	Requests     int           `json:"requests"`               // requests that were sent
	Bytes        int64         `json:"bytes" unit:"bytes"`     // keys and cells that were sent and received
	Seconds      float64       `json:"seconds" unit:"seconds"` // time of all tests
	Latencies    []Latency     `json:"latencies"`              // how long requests took, by kind
	RemovedCells *RemovedCells `json:"removed_cells"`          // what removed cells cost; null if it was not measured
	Results      []Result      `json:"results"`                // what each test found, in order
}

// A Latency is how long requests of one kind took while several ran at once.
type Latency struct {
	Kind   string  `json:"kind"`             // kind of request
	Count  int     `json:"count"`            // number of requests without an error
	Median float64 `json:"p50_ms" unit:"ms"` // half of the requests took at most this long
	P99    float64 `json:"p99_ms" unit:"ms"` // 99 of 100 requests took at most this long
}

// A Verdict is a report in one word.
type Verdict string

// The verdicts.
const (
	// Safe: the service keeps everything that was tested.
	Safe Verdict = "safe"
	// SafeWithLimits: the service does not keep some optional assumptions.
	SafeWithLimits Verdict = "limits"
	// Unsafe: the service does not keep a required assumption. Transactions are not safe.
	Unsafe Verdict = "unsafe"
	// Incomplete: some required assumption could not be tested.
	Incomplete Verdict = "incomplete"
)

func newReport(table string) *Report {
	return &Report{Table: table, Verdict: Safe, Kept: []string{}, Limits: []string{}, Broken: []string{}, Untested: []string{}, Results: []Result{}}
}

// Add adds the result of another test.
func (r *Report) Add(result Result) {
	r.Results = append(r.Results, result)
	r.Requests += result.Requests
	r.Bytes += result.Bytes
	if result.removed != nil {
		r.RemovedCells = result.removed
	}
	to := map[State]*[]string{Kept: &r.Kept, Limit: &r.Limits, Broken: &r.Broken, Untested: &r.Untested}[result.State]
	*to = append(*to, result.ID)
	switch {
	case len(r.Broken) > 0:
		r.Verdict = Unsafe
	case len(r.Untested) > 0:
		r.Verdict = Incomplete
	case len(r.Limits) > 0:
		r.Verdict = SafeWithLimits
	}
}

// JUnit writes the report in the format that CI systems read: a limit is a skipped test.
func (r *Report) JUnit(w io.Writer) error {
	type text struct {
		Message string `xml:"message,attr"`
		Text    string `xml:",chardata"`
	}
	type testCase struct {
		Class   string  `xml:"classname,attr"`
		Name    string  `xml:"name,attr"`
		Time    float64 `xml:"time,attr"`
		Failure *text   `xml:"failure,omitempty"`
		Error   *text   `xml:"error,omitempty"`
		Skipped *text   `xml:"skipped,omitempty"`
	}
	suite := struct {
		XMLName  xml.Name   `xml:"testsuite"`
		Name     string     `xml:"name,attr"`
		Tests    int        `xml:"tests,attr"`
		Failures int        `xml:"failures,attr"`
		Errors   int        `xml:"errors,attr"`
		Skipped  int        `xml:"skipped,attr"`
		Time     float64    `xml:"time,attr"`
		Cases    []testCase `xml:"testcase"`
	}{Name: "conformance", Tests: len(r.Results), Failures: len(r.Broken), Errors: len(r.Untested), Skipped: len(r.Limits), Time: r.Seconds}
	for _, result := range r.Results {
		c := testCase{Class: result.Group, Name: result.ID, Time: result.Seconds}
		t := &text{result.Detail, result.Title + "\n" + result.Breaks + "\n" + result.Advice}
		switch result.State {
		case Broken:
			c.Failure = t
		case Untested:
			c.Error = t
		case Limit:
			c.Skipped = t
		}
		suite.Cases = append(suite.Cases, c)
	}
	b, err := xml.MarshalIndent(suite, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s%s\n", xml.Header, b)
	return err
}
