package emulator_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/google/go-cmp/cmp"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/gc"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

var updateTables = flag.Bool("update-tables", false, "let tests write the tables in testdata that they compare with")

// damages are values that no client of this release writes.
var damages = map[string][]byte{
	"garbage":         {0xff},
	"another version": {1 << 3, 99},
}

// damagedOperations are those of TestFaultMatrix and of
// TestChangesRefusedAtEveryRequest, and garbage collection.
func damagedOperations() map[string]func(context.Context, *txn.Client) (any, error) {
	all := changesOperations()
	for _, op := range operations() {
		if op.left == "" && op.name != "close" && op.name != "held snapshot" && op.name != "wait for observers" {
			name := op.name
			if slices.Contains([]string{"read, then write", "serializable", "delete row", "update", "bulk load"}, name) {
				name = "write " + name
			}
			all[name] = op.call
		}
	}
	all["plan collection"] = func(ctx context.Context, c *txn.Client) (any, error) {
		r, err := gc.Plan(ctx, c, gc.Config{Retention: retention})
		if err != nil {
			return nil, err
		}
		return fmt.Sprintf("%d of %d rows skipped, %d cells", r.Total.RowsSkipped, r.Total.Rows, r.Total.Cells), nil
	}
	all["status of collection"] = func(ctx context.Context, c *txn.Client) (any, error) {
		s, err := gc.ReadStatus(ctx, c)
		return err == nil && s.SafePoint > 0, err
	}
	all["write collection"] = func(ctx context.Context, c *txn.Client) (any, error) {
		r, err := gc.Run(ctx, c, gc.Config{Retention: retention})
		if err != nil {
			return nil, err
		}
		return fmt.Sprintf("%d of %d rows skipped, %d cells", r.Total.RowsSkipped, r.Total.Rows, r.Total.Cells), nil
	}
	return all
}

// newComplete makes table a with every kind of record: those of newAcknowledged, a failure, a marker,
// a token, what a collection stores, the locks of a client that died after its commit of bob and joe,
// and those of one that died before its commit of kim and tom.
func newComplete(t *testing.T) *txntest.Env {
	t.Helper()
	env := newAcknowledged(t, txntest.WithoutCheck())
	env.CreateTable("b", "f")
	mustSet(t, env.Client, "1", "sue")
	leaveLocksOn(t, env, txn.Config{TokenTTL: -1}, txntest.StepCommit, "ann")
	advance(time.Minute)
	wantValue(t, takeSnapshot(t, env.Client), "ann", "") // rolls it back
	runGC(t, env.Client, gc.Config{})
	advance(retention + time.Minute)
	leaveLocksOn(t, env, txn.Config{}, txntest.StepCommit, "kim", "tom")
	leaveLocks(t, env, txntest.StepSecondaries)
	if err := changes.SetFailure(t.Context(), env.Client, txn.Cell{Table: "a", Row: "sue", Family: "f", Qualifier: "q"}, "o", format.Failure{ChangeTS: 1, Attempts: 1}); err != nil {
		t.Fatal(err)
	}
	return env
}

// A storedCell is a cell and its value.
type storedCell struct {
	table, row string
	item       bigtable.ReadItem
}

// records returns the newest record of each kind, by its name.
func records(t *testing.T, env *txntest.Env) map[string]storedCell {
	t.Helper()
	found := map[string]storedCell{}
	for _, table := range []string{"a", format.DefaultMetadataTable} {
		if err := env.Bigtable.Open(table).ReadRows(t.Context(), bigtable.InfiniteRange(""), func(r bigtable.Row) bool {
			for family, items := range r {
				for _, i := range items {
					name, _, _ := strings.Cut(r.Key(), "/")
					if family == "f" || name == "oracle" || table == format.DefaultMetadataTable && r.Key() != "schema/a" && name == "schema" {
						continue // values, and records of another table
					}
					name = fmt.Sprintf("%s %s %s", table, name, i.Column)
					if _, ok := found[name]; !ok {
						found[name] = storedCell{table, r.Key(), i}
					}
				}
			}
			return true
		}); err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// varying matches what varies with the time at which a test runs.
var varying = regexp.MustCompile(`[0-9]{4,}|[0-9a-f]{16,}`)

// TestDamagedRecords damages one record of each kind, and runs every operation. Either the operation
// reports the damage, or it does what it does without it. testdata/damage.txt lists the operations
// that report it, and what else differs.
func TestDamagedRecords(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	all := damagedOperations()
	names := slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		order := func(name string) string { // what changes something comes last
			if strings.HasPrefix(name, "write") {
				return "2" + name
			}
			return "1" + name
		}
		return strings.Compare(order(a), order(b))
	})
	run := func(damaged string, value []byte) (outcomes map[string]string, kinds []string) {
		outcomes = map[string]string{}
		synctest.Test(t, func(t *testing.T) {
			env := newComplete(t)
			found := records(t, env)
			kinds = slices.Sorted(maps.Keys(found))
			if c, ok := found[damaged]; ok {
				m := bigtable.NewMutation()
				family, qualifier, _ := strings.Cut(c.item.Column, ":")
				m.Set(family, qualifier, c.item.Timestamp, value)
				if err := env.Bigtable.Open(c.table).Apply(t.Context(), c.row, m); err != nil {
					t.Fatal(err)
				}
			}
			bt, admin := env.Open()
			c, err := txn.NewClient(t.Context(), bt, txn.Config{TokenTTL: -1, Admin: admin})
			if err != nil {
				outcomes["the client"] = outcomeOf(nil, err)
				return
			}
			for _, name := range names {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				began := time.Now()
				result, err := all[name](ctx, c)
				cancel()
				if d := time.Since(began); d > 3*time.Minute { // a collection waits for two
					t.Errorf("%s, damaged %s: %v after %v", name, damaged, err, d)
				}
				synctest.Wait()
				if name == "write Sweep" || name == "write Pending" {
					result = nil // it depends on the locks that a read resolved before it failed
				}
				outcomes[name] = outcomeOf(result, err)
			}
			if err := c.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
		return outcomes, kinds
	}
	want, kinds := run("", nil)
	for name, got := range want {
		if got == "error" {
			t.Errorf("without damage, %s fails", name)
		}
	}
	var out strings.Builder
	var leftOut []string
	for i, kind := range kinds {
		if long.Reduced() && i%3 != 0 && !*updateTables {
			leftOut = append(leftOut, kind)
			continue
		}
		by := map[string][]string{} // operations by outcome
		for _, how := range slices.Sorted(maps.Keys(damages)) {
			got, _ := run(kind, damages[how])
			for name, outcome := range got {
				if want := "reported " + how; strings.HasPrefix(outcome, "reported") {
					if outcome = "reported"; how == "another version" && want != got[name] || how != "another version" && got[name] != "reported damage" {
						t.Errorf("%s, %s: %s %s", kind, how, name, got[name])
					}
				}
				if line := outcome + ": " + name; outcome != want[name] && !slices.Contains(by[line], how) {
					by[line] = append(by[line], how)
				}
			}
		}
		lines := map[string][]string{}
		for line, hows := range by {
			outcome, name, _ := strings.Cut(line, ": ")
			what := kind
			if len(hows) < len(damages) {
				what += ", " + strings.Join(hows, " or ")
			}
			lines[what+": "+outcome] = append(lines[what+": "+outcome], name)
		}
		for _, line := range slices.Sorted(maps.Keys(lines)) {
			slices.Sort(lines[line])
			fmt.Fprintf(&out, "%s:\n\t%s\n", line, strings.Join(lines[line], "; "))
		}
	}
	compareExcept(t, "testdata/damage.txt", out.String(), func(entry string) bool {
		return slices.ContainsFunc(leftOut, func(kind string) bool {
			rest, ok := strings.CutPrefix(entry, kind)
			return ok && (strings.HasPrefix(rest, ": ") || strings.HasPrefix(rest, ", "))
		})
	})
}

// compareWith compares what a test found with a file that lists it.
func compareWith(t *testing.T, file, got string) {
	t.Helper()
	compareExcept(t, file, got, func(string) bool { return false })
}

// compareExcept is compareWith without some of the file's entries, which begin at the left margin.
func compareExcept(t *testing.T, file, got string, leaveOut func(entry string) bool) {
	t.Helper()
	if *updateTables {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	listed, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want, left := "", false
	for line := range strings.Lines(string(listed)) {
		if !strings.HasPrefix(line, "\t") {
			left = leaveOut(line)
		}
		if !left {
			want += line
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-update-tables writes %s; -want +got:\n%s", file, d)
	}
}

// A client reports a safe point that is damaged while it runs at once: it does not wait for another one.
func TestDamagedSafePoint(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	for how, value := range damages {
		synctest.Test(t, func(t *testing.T) {
			env := newAcknowledged(t, txntest.WithoutCheck())
			c := env.NewClient(txn.Config{TokenTTL: -1})
			mustSet(t, c, "1", "ann")
			m := bigtable.NewMutation()
			m.Set("meta", "safe-point", 0, value)
			if err := env.Bigtable.Open(format.DefaultMetadataTable).Apply(t.Context(), "gc", m); err != nil {
				t.Fatal(err)
			}
			advance(time.Hour)
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			s, err := c.Snapshot(ctx)
			if err == nil {
				_, _, err = s.Table("a").Get(ctx, "ann", "f", "q")
			}
			if got := outcomeOf(nil, err); !strings.HasPrefix(got, "reported") || time.Since(began) > time.Minute {
				t.Errorf("%s: %v after %v", how, err, time.Since(began))
			}
		})
	}
}

// outcomeOf is what an operation returned.
func outcomeOf(result any, err error) string {
	s := ""
	switch {
	case errors.Is(err, txn.ErrCorrupt):
		s = "reported damage"
	case errors.Is(err, txn.ErrFormatVersion):
		s = "reported another version"
	case err != nil:
		s = "error"
	default:
		s = fmt.Sprintf("%v", result)
	}
	return varying.ReplaceAllString(s, "N")
}
