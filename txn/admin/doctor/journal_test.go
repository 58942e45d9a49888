package doctor_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/admin/doctor"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/journal"
	"github.com/percolator-bigtable/percolator/txn/internal/recordpb"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

// journalFindings are the findings about the journal of table docs: the severity, and how each
// begins.
func journalFindings(t *testing.T, env *txntest.Env) (found []string) {
	t.Helper()
	d := &doctor.Deployment{Project: "p", Instance: "i", Bigtable: env.Bigtable, Admin: env.Admin, Emulator: true, Rows: 100}
	end, err := d.Open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	d.Tables = []string{"docs"}
	observers := slices.DeleteFunc(doctor.All(), func(c doctor.Check) bool { return c.Name != "observers" })
	for _, f := range doctor.Run(t.Context(), d, observers, nil)[0].Findings {
		if f.Subject == "journal of docs" {
			if f.Why == "" || f.Fix == "" {
				t.Errorf("an incomplete finding: %+v", f)
			}
			what, _, _ := strings.Cut(f.What, " since ")
			what, _, _ = strings.Cut(what, ";")
			found = append(found, string(f.Severity)+": "+what)
		}
	}
	return found
}

// TestJournalFindings: doctor says whether workers can rely on a journal of pending work.
func TestJournalFindings(t *testing.T) {
	const (
		none       = "note: the table has no journal of pending work"
		incomplete = "note: it is not complete before a sweep of the table has ended"
		overdue    = "warning: the daily sweep has not continued"
	)
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded(), txntest.WithoutJournal(), txntest.WithConfig(txn.Config{TokenTTL: -1}))
		env.CreateTable("docs", "f")
		if err := changes.RegisterObserver(t.Context(), env.Client, "docs", txn.Column{Family: "f", Qualifier: "q"}, "o", false); err != nil {
			t.Fatal(err)
		}
		check := func(when string, want ...string) {
			t.Helper()
			if got := journalFindings(t, env); !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", when, got, want)
			}
		}
		check("a table of an old release", none)

		if err := admin.InitTable(t.Context(), env.Admin, env.Bigtable, "", admin.TableSpec{Name: "docs", Families: []string{"f"}}); err != nil {
			t.Fatal(err)
		}
		check("after table init, before any worker runs", incomplete)

		worker := env.NewClient(txn.Config{TokenTTL: -1})
		// move moves the sweep as a worker does that had to continue it after a pause.
		move := func(end bool, pause time.Duration) {
			t.Helper()
			p, err := changes.SweepPositions(t.Context(), worker, nil, "docs")
			if err != nil {
				t.Fatal(err)
			}
			if _, ok, err := changes.MoveSweep(t.Context(), worker, p[0], "", end, pause); err != nil || !ok {
				t.Fatalf("MoveSweep: %v, %v", ok, err)
			}
		}
		move(false, -23*time.Hour)
		check("a sweep that waits for less than a day", incomplete)
		move(false, -25*time.Hour)
		check("a sweep that no worker continues", incomplete, overdue)
		move(true, 24*time.Hour)
		check("after the first sweep")
		move(false, -25*time.Hour)
		check("the second sweep does not begin", overdue)

		// damage replaces the stored position.
		damage := func(value []byte) {
			t.Helper()
			m := bigtable.NewMutation()
			m.Set(store.DeployFamily, journal.SweepQualifier, 0, value)
			if err := env.Bigtable.OpenTable(format.DefaultMetadataTable).Apply(t.Context(), journal.SweepRow("docs"), m); err != nil {
				t.Fatal(err)
			}
		}
		damage([]byte("\xff"))
		if got := journalFindings(t, env); len(got) != 1 || !strings.HasPrefix(got[0], `warning: changes: sweep of table "docs"`) {
			t.Errorf("a damaged position: %q", got)
		}
		damage(format.Marshal(&recordpb.Sweep{FormatVersion: format.Version + 1}))
		if got := journalFindings(t, env); len(got) != 1 || !strings.HasPrefix(got[0], "warning: changes: unknown storage format version: sweep of table") {
			t.Errorf("a position of a newer release: %q", got)
		}
		remove := bigtable.NewMutation()
		remove.DeleteRow()
		if err := env.Bigtable.OpenTable(format.DefaultMetadataTable).Apply(t.Context(), journal.SweepRow("docs"), remove); err != nil {
			t.Fatal(err)
		}
		check("after the damaged position was removed", incomplete)
	})
}

// TestNewTableNeedsNoSweep: a table that had a journal from its beginning has no finding.
func TestNewTableNeedsNoSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		env.CreateTable("docs", "f")
		if found := journalFindings(t, env); found != nil {
			t.Errorf("without observers: %q", found)
		}
		if err := changes.RegisterObserver(t.Context(), env.Client, "docs", txn.Column{Family: "f", Qualifier: "q"}, "o", false); err != nil {
			t.Fatal(err)
		}
		if found := journalFindings(t, env); found != nil {
			t.Errorf("with an observer: %q", found)
		}
	})
}
