package checks

import (
	"fmt"
	"strings"
	"testing"

	"github.com/percolator-bigtable/percolator/cmd/percctl/cli"
	"github.com/percolator-bigtable/percolator/txn/admin/doctor"
)

// TestManyFindings: the text for 200 tables that have the same problem has few lines, and errors come
// first. The counts are those of all.
func TestManyFindings(t *testing.T) {
	results := []doctor.Result{{Check: "schema records", State: doctor.OK}, {Check: "observers", State: doctor.Found}, {Check: "consistency", State: doctor.Found}}
	for i := range 200 {
		table := fmt.Sprintf("table-%03d", i)
		results[1].Findings = append(results[1].Findings, doctor.Finding{Check: "observers", Severity: doctor.Note, Subject: table}, doctor.Finding{Check: "observers", Severity: doctor.Warning, Subject: table})
		results[2].Findings = append(results[2].Findings, doctor.Finding{Check: "consistency", Severity: doctor.Error, Subject: table})
	}
	r := newReport(&doctor.Deployment{}, results)
	if r.Errors != 200 || r.Warnings != 200 || r.Notes != 200 {
		t.Errorf("%d errors, %d warnings, %d notes", r.Errors, r.Warnings, r.Notes)
	}
	var out strings.Builder
	if err := r.text(&out, cli.Style{}); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	errors, warnings, notes := strings.Index(text, "\nerror: "), strings.Index(text, "\nwarning: "), strings.Index(text, "\nnote: ")
	if n := strings.Count(text, "\n"); n > 80 || errors < 0 || errors > warnings || warnings > notes || strings.Count(text, "… and 195 findings more") != 3 {
		t.Errorf("%d lines:\n%s", n, text)
	}
}
