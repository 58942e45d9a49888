package emulator_test

import (
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// RawWrites finds a raw write by its timestamp: it is later than the adoption, or than
// a commit of its column.
func TestRawWrites(t *testing.T) {
	long.NotUnderRace(t, "one request after the other")
	synctest.Test(t, func(t *testing.T) {
		env := newPlain(t) // rows r000 to r099, from before the adoption
		advance(time.Hour)
		mustAdopt(t, env, adoptA(env))
		c := env.NewClient(txn.Config{TokenTTL: -1})
		d, err := admin.Describe(t.Context(), c, "a")
		if err != nil || d.FormatVersion != 1 || d.AdoptedTS == 0 || len(d.Families) != 2 {
			t.Fatalf("%+v, %v", d, err)
		}
		advance(time.Minute)
		mustSet(t, c, "1", "r010", "r011")
		advance(time.Minute)
		put(t, env, "r010", "f", "q", bigtable.Now(), []byte("raw"))
		put(t, env, "r020", "g", "other", bigtable.Now(), []byte("raw"))
		// A raw write with an old timestamp cannot be recognized.
		put(t, env, "r021", "f", "q", bigtable.Now()-7200e6, []byte("raw"))
		var found []admin.RawWrite
		for w, err := range admin.RawWrites(t.Context(), c, "a", nil) {
			if err != nil {
				t.Fatal(err)
			}
			found = append(found, w)
		}
		if len(found) != 2 || found[0].Cell.Row != "r010" || !found[0].Hidden || found[1].Cell != (txn.Cell{Table: "a", Row: "r020", Family: "g", Qualifier: "other"}) || found[1].Hidden || found[1].Since != d.AdoptedTS {
			t.Errorf("%+v", found)
		}
		if found[0].At.Time().Sub(found[0].Since.Time()) < time.Minute {
			t.Errorf("found at %v, since %v", found[0].At.Time(), found[0].Since.Time())
		}
	})
}

// If the time of adoption is not known, RawWrites finds raw writes only in columns with
// a commit.
func TestRawWritesWithoutAdoption(t *testing.T) {
	t.Parallel()
	env := txntest.New(t, txntest.Embedded())
	env.CreateTable("a", "f")
	mustSet(t, env.Client, "1", "bob")
	later := bigtable.Time(time.Now().Add(time.Hour)).TruncateToMilliseconds()
	put(t, env, "bob", "f", "q", later, []byte("raw"))
	put(t, env, "eve", "f", "q", later, []byte("raw"))
	n := 0
	for w, err := range admin.RawWrites(t.Context(), env.Client, "a", nil) {
		if err != nil || w.Cell.Row != "bob" || w.At != tso.Timestamp(later) {
			t.Errorf("%+v, %v", w, err)
		}
		n++
	}
	if n != 1 {
		t.Errorf("%d raw writes, want 1", n)
	}
}

// Status lists live and dead clients, but not those that closed.
func TestWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := txntest.New(t, txntest.Embedded())
		env.CreateTable("a", "f")
		alive, closed := env.NewClient(txn.Config{}), env.NewClient(txn.Config{})
		faults := txntest.NewFaults(t)
		dead := env.NewClient(txn.Config{}, faults.DialOptions()...)
		for _, c := range []*txn.Client{alive, closed, dead} {
			mustSet(t, c, "1", "bob")
		}
		if err := closed.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		faults.Kill()
		advance(time.Minute)
		all, err := admin.Workers(t.Context(), alive)
		if err != nil {
			t.Fatal(err)
		}
		states := map[string]admin.OwnerState{}
		for _, w := range all {
			states[w.Owner] = w.State
		}
		if len(states) != 2 || states[admin.Owner(alive)] != admin.OwnerFresh || states[admin.Owner(dead)] != admin.OwnerStale {
			t.Errorf("workers %v; want %s live and %s dead", states, admin.Owner(alive), admin.Owner(dead))
		}
	})
}
