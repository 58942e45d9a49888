package idempotency_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/idempotency"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

func newEnv(t *testing.T) *txntest.Env {
	t.Helper()
	env := txntest.New(t, txntest.Embedded())
	env.CreateTable("t", "f")
	env.CreateTable("requests", "key")
	return env
}

func newKeys(t *testing.T, c *txn.Client) *idempotency.Keys {
	t.Helper()
	k, err := idempotency.New(c, "requests", "key")
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// increment adds one to a counter and returns it.
func increment(ctx context.Context, tx *txn.Txn) ([]byte, error) {
	value, _, err := tx.Table("t").Get(ctx, "counter", "f", "n")
	if err != nil {
		return nil, err
	}
	n, _ := strconv.Atoi(string(value))
	next := strconv.AppendInt(nil, int64(n+1), 10)
	tx.Table("t").Set("counter", "f", "n", next)
	return next, nil
}

func wantCounter(t *testing.T, c *txn.Client, want string) {
	t.Helper()
	s, err := c.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if v, _, err := s.Table("t").Get(t.Context(), "counter", "f", "n"); err != nil || string(v) != want {
		t.Errorf("the counter is %q, error %v, want %q", v, err, want)
	}
}

func TestRepeat(t *testing.T) {
	env := newEnv(t)
	keys := newKeys(t, env.Client)
	if _, ok, err := keys.Lookup(t.Context(), "a"); ok || err != nil {
		t.Errorf("a new key: exists: %v, error: %v", ok, err)
	}
	first, err := keys.Update(t.Context(), idempotency.Key{ID: "a", Request: []byte("x")}, increment)
	if err != nil || string(first.Result) != "1" || first.Repeated || first.CommitTS == 0 {
		t.Fatalf("first call: %+v, error %v", first, err)
	}
	other := newKeys(t, env.NewClient(txn.Config{})) // in another process
	again, err := other.Update(t.Context(), idempotency.Key{ID: "a", Request: []byte("x")}, func(context.Context, *txn.Txn) ([]byte, error) {
		t.Error("the function runs a second time")
		return nil, nil
	})
	if err != nil || string(again.Result) != "1" || !again.Repeated || again.CommitTS != first.CommitTS {
		t.Errorf("second call: %+v, error %v, want %+v", again, err, first)
	}
	if found, ok, err := other.Lookup(t.Context(), "a"); err != nil || !ok || found.CommitTS != first.CommitTS || string(found.Result) != "1" {
		t.Errorf("Lookup: %+v, exists: %v, error: %v", found, ok, err)
	}
	for _, request := range [][]byte{[]byte("y"), {}, nil} {
		o, err := keys.Update(t.Context(), idempotency.Key{ID: "a", Request: request}, increment)
		if !errors.Is(err, idempotency.ErrMismatch) || o.CommitTS != 0 || !strings.Contains(err.Error(), `"a"`) {
			t.Errorf("request %q: %+v, error %v", request, o, err)
		}
	}
	wantCounter(t, env.Client, "1")
	if o, err := keys.Update(t.Context(), idempotency.Key{ID: "b"}, func(context.Context, *txn.Txn) ([]byte, error) { return nil, nil }); err != nil || o.Repeated || o.Result == nil {
		t.Errorf("a function without writes and result: %+v, error %v", o, err)
	}
	if o, err := keys.Update(t.Context(), idempotency.Key{ID: "b"}, increment); err != nil || !o.Repeated || o.Result == nil || len(o.Result) > 0 {
		t.Errorf("its repetition: %+v, error %v", o, err)
	}
}

// TestFunctionFails: an error is not recorded.
func TestFunctionFails(t *testing.T) {
	env := newEnv(t)
	keys := newKeys(t, env.Client)
	broken := errors.New("broken")
	for range 2 {
		_, err := keys.Update(t.Context(), idempotency.Key{ID: "a"}, func(ctx context.Context, tx *txn.Txn) ([]byte, error) {
			_, err := increment(ctx, tx)
			return nil, errors.Join(err, broken)
		})
		if !errors.Is(err, broken) {
			t.Errorf("error %v", err)
		}
	}
	if o, err := keys.Update(t.Context(), idempotency.Key{ID: "a"}, increment); err != nil || o.Repeated || string(o.Result) != "1" {
		t.Errorf("after an error: %+v, error %v", o, err)
	}
}

// TestManyAtOnce: of many calls with a key in several processes, one takes effect.
func TestManyAtOnce(t *testing.T) {
	env := newEnv(t)
	var all sync.WaitGroup
	var mu sync.Mutex
	first, outcomes := 0, map[string]int{}
	for range 3 {
		keys := newKeys(t, env.NewClient(txn.Config{}))
		for i := range 9 {
			all.Go(func() {
				o, err := keys.Update(t.Context(), idempotency.Key{ID: fmt.Sprint(i % 3)}, increment)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				outcomes[fmt.Sprint(i%3, o.CommitTS, string(o.Result))]++
				if !o.Repeated {
					first++
				}
			})
		}
	}
	all.Wait()
	if first != 3 || len(outcomes) != 3 {
		t.Errorf("%d calls were the first ones; outcomes %v", first, outcomes)
	}
	wantCounter(t, env.Client, "3")
}

// TestCrash: a process dies, or loses its deadline, at any of its requests. A second call with
// the key gives the same result in every case, and the effect is there once.
func TestCrash(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	total := 0
	run := func(t *testing.T, at int, action txntest.Action) {
		env := newEnv(t)
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{LockTTL: 2 * time.Second, TokenTTL: -1, SyncSecondaries: true}, faults.DialOptions()...)
		n := 0
		rule := faults.On(fmt.Sprint("request ", at), func(txntest.Call) bool { n++; return n == at }, action, 1)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan struct{})
		var o idempotency.Outcome
		var err error
		go func() {
			defer close(done)
			o, err = newKeys(t, c).Update(ctx, idempotency.Key{ID: "a"}, increment)
		}()
		if at == 0 {
			<-done
			rule.Optional()
			total = n
		} else {
			<-rule.Fired()
			synctest.Wait()
			faults.Kill()
			cancel()
			<-done
		}
		again, err2 := newKeys(t, env.Client).Update(t.Context(), idempotency.Key{ID: "a"}, increment)
		if err2 != nil || string(again.Result) != "1" || err == nil && (!again.Repeated || again.CommitTS != o.CommitTS) {
			t.Errorf("request %d, %v: %+v, error %v; then %+v, error %v", at, action, o, err, again, err2)
		}
		wantCounter(t, env.Client, "1")
	}
	synctest.Test(t, func(t *testing.T) { run(t, 0, txntest.Crash) })
	if total < 8 {
		t.Errorf("only %d requests", total)
	}
	for at := 1; at <= total; at++ {
		for _, action := range []txntest.Action{txntest.Crash, txntest.HoldResponse} {
			synctest.Test(t, func(t *testing.T) { run(t, at, action) })
		}
	}
}

// TestSweep removes old records, and those only.
func TestSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newEnv(t)
		keys := newKeys(t, env.Client)
		call := func(id string) idempotency.Outcome {
			t.Helper()
			o, err := keys.Update(t.Context(), idempotency.Key{ID: id}, increment)
			if err != nil {
				t.Fatal(err)
			}
			return o
		}
		for i := range 410 {
			call(fmt.Sprint("old", i))
		}
		<-time.After(time.Hour)
		call("new")
		if n, err := keys.Sweep(t.Context(), 30*time.Minute); err != nil || n != 410 {
			t.Errorf("removed %d, error %v", n, err)
		}
		if !call("new").Repeated || call("old0").Repeated {
			t.Error("Sweep removed a new record, or left an old one")
		}
		if n, err := keys.Sweep(t.Context(), 30*time.Minute); err != nil || n != 0 {
			t.Errorf("removed %d more, error %v", n, err)
		}
	})
}

// TestResults: results of no bytes and of the most bytes come back as they were. Keys of other
// tables are other keys.
func TestResults(t *testing.T) {
	env := newEnv(t)
	env.CreateTable("more", "k")
	keys := newKeys(t, env.Client)
	other, err := idempotency.New(env.Client, "more", "k")
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string][]byte{"none": nil, "empty": {}, strings.Repeat("k", 4096): bytes.Repeat([]byte{0xff}, idempotency.MaxResult)} {
		f := func(context.Context, *txn.Txn) ([]byte, error) { return want, nil }
		for _, k := range []*idempotency.Keys{keys, other} {
			for _, repeated := range []bool{false, true} {
				o, err := k.Update(t.Context(), idempotency.Key{ID: id}, f)
				if err != nil || o.Repeated != repeated || o.Result == nil || !bytes.Equal(o.Result, want) {
					t.Errorf("key of %d bytes: repeated: %v, result of %d bytes, error %v", len(id), o.Repeated, len(o.Result), err)
				}
			}
		}
		// Without a Request, the key was used for no request.
		if _, err := keys.Update(t.Context(), idempotency.Key{ID: id, Request: []byte{}}, f); !errors.Is(err, idempotency.ErrMismatch) {
			t.Errorf("with a request: %v, want ErrMismatch", err)
		}
	}
}

// TestRoundTrips: a key costs a read, and a row that is written.
func TestRoundTrips(t *testing.T) {
	long.NotUnderRace(t, "one request after the other, and what it costs")
	synctest.Test(t, func(t *testing.T) {
		env := newEnv(t)
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{SchemaMaxAge: time.Hour}, faults.DialOptions()...)
		keys := newKeys(t, c)
		call := func(id string, want map[txntest.Step]int) {
			t.Helper()
			synctest.Wait()
			faults.Reset()
			if _, err := keys.Update(t.Context(), idempotency.Key{ID: id}, increment); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			got := faults.Count()
			for step, n := range want {
				if got[step] != n {
					t.Errorf("requests %v, want %v", got, want)
				}
			}
		}
		if _, err := keys.Update(t.Context(), idempotency.Key{ID: "warm"}, increment); err != nil {
			t.Fatal(err)
		}
		call("a", map[txntest.Step]int{txntest.StepOracle: 2, txntest.StepRead: 2, txntest.StepPrewrite: 2, txntest.StepCommit: 1, txntest.StepSecondaries: 1})
		call("a", map[txntest.Step]int{txntest.StepOracle: 1, txntest.StepRead: 1, txntest.StepPrewrite: 0, txntest.StepCommit: 0})
	})
}

func TestBadArguments(t *testing.T) {
	env := newEnv(t)
	for _, c := range []func() (*idempotency.Keys, error){
		func() (*idempotency.Keys, error) { return idempotency.New(nil, "t", "f") },
		func() (*idempotency.Keys, error) { return idempotency.New(env.Client, "", "f") },
		func() (*idempotency.Keys, error) { return idempotency.New(env.Client, "t", "") },
	} {
		if _, err := c(); !errors.Is(err, txn.ErrInvalid) {
			t.Errorf("error %v", err)
		}
	}
	keys := newKeys(t, env.Client)
	if _, err := keys.Update(t.Context(), idempotency.Key{}, increment); !errors.Is(err, txn.ErrInvalid) {
		t.Errorf("empty key: %v", err)
	}
	if _, err := keys.Update(t.Context(), idempotency.Key{ID: strings.Repeat("k", 5000)}, increment); !errors.Is(err, txn.ErrLimit) {
		t.Errorf("long key: %v", err)
	}
	if _, err := keys.Update(t.Context(), idempotency.Key{ID: "a"}, func(context.Context, *txn.Txn) ([]byte, error) {
		return make([]byte, idempotency.MaxResult+1), nil
	}); !errors.Is(err, txn.ErrLimit) {
		t.Errorf("long result: %v", err)
	}
	if _, err := keys.Sweep(t.Context(), 0); !errors.Is(err, txn.ErrInvalid) {
		t.Errorf("Sweep of everything: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := keys.Update(ctx, idempotency.Key{ID: "a"}, increment); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: %v", err)
	}
	if _, ok, err := keys.Lookup(t.Context(), "a"); ok || err != nil {
		t.Errorf("a refused call left a record (%v)", err)
	}
}

// An expiry of the records decides for how long a key counts: afterwards the function runs again,
// also with another request.
func TestRecordsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newEnv(t)
		keys := newKeys(t, env.Client)
		if err := admin.SetExpiry(t.Context(), env.Client, "requests", "key", time.Hour); err != nil {
			t.Fatal(err)
		}
		update := func(request string) (idempotency.Outcome, error) {
			return keys.Update(t.Context(), idempotency.Key{ID: "k", Request: []byte(request)}, increment)
		}
		first, err := update("one")
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(59 * time.Minute)
		if o, err := update("one"); err != nil || !o.Repeated || o.CommitTS != first.CommitTS {
			t.Errorf("before the expiry: %+v, %v", o, err)
		}
		if _, err := update("two"); !errors.Is(err, idempotency.ErrMismatch) {
			t.Errorf("another request before the expiry: %v", err)
		}
		<-time.After(2 * time.Minute)
		if o, err := update("two"); err != nil || o.Repeated || string(o.Result) != "2" {
			t.Errorf("after the expiry: %+v, %v", o, err)
		}
		wantCounter(t, env.Client, "2")
	})
}

// Sweep looks at the age of a record again in the transaction that removes it: the key may have
// been used anew since Sweep found the old record.
func TestSweepBesideANewRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newEnv(t)
		keys := newKeys(t, env.Client)
		use := func() {
			t.Helper()
			if _, err := keys.Update(t.Context(), idempotency.Key{ID: "k"}, increment); err != nil {
				t.Fatal(err)
			}
		}
		use()
		<-time.After(time.Hour)
		renewed := false
		sweeper := env.NewClient(txn.Config{}, txntest.Intercept(func(c txntest.Call) error {
			if c.Table == "requests" && c.Row == "k" && c.Step == txntest.StepRead && !renewed { // after the scan, before the removal
				renewed = true
				if n, err := keys.Sweep(t.Context(), 30*time.Minute); n != 1 || err != nil {
					t.Errorf("another Sweep removed %d records, %v", n, err)
				}
				use()
			}
			return nil
		})...)
		if n, err := newKeys(t, sweeper).Sweep(t.Context(), 30*time.Minute); err != nil || n != 0 || !renewed {
			t.Errorf("Sweep removed %d records, %v; the key was used anew: %v", n, err, renewed)
		}
		if _, ok, err := keys.Lookup(t.Context(), "k"); err != nil || !ok {
			t.Errorf("the new record: %v, %v", ok, err)
		}
	})
}
