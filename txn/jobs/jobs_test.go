package jobs_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/jobs"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

// newEnv makes table t with rows 000, 001, …, whose value is 0, and a table for progress.
func newEnv(t *testing.T, rows int) *txntest.Env {
	t.Helper()
	env := txntest.New(t, txntest.Embedded())
	env.CreateTable("t", "f")
	env.CreateTable("jobs", "job")
	_, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
		for i := range rows {
			tx.Table("t").Set(fmt.Sprintf("%03d", i), "f", "n", []byte("0"))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return env
}

func newJob() jobs.Job {
	return jobs.Job{Name: "count", Table: "t", Progress: "jobs", Family: "job", BatchRows: 7, Parallel: 2}
}

// increment adds one to the row's value.
func increment(_ context.Context, tx *txn.Txn, row bigtable.Row) error {
	n, err := strconv.Atoi(string(row["f"][0].Value))
	tx.Table("t").Set(row.Key(), "f", "n", strconv.AppendInt(nil, int64(n+1), 10))
	return err
}

// wantValues checks the value of each row.
func wantValues(t *testing.T, c *txn.Client, rows int, want func(row string) string) {
	t.Helper()
	s, err := c.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for row, err := range s.Table("t").ReadRows(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		if n++; string(row["f"][0].Value) != want(row.Key()) {
			t.Errorf("row %s is %q, want %q", row.Key(), row["f"][0].Value, want(row.Key()))
		}
	}
	if n != rows {
		t.Errorf("%d rows, want %d", n, rows)
	}
}

func one(string) string { return "1" }

func TestRun(t *testing.T) {
	long.RacedAtNight(t)
	env := newEnv(t, 100)
	job := newJob()
	var reports []jobs.Status
	job.Report = func(s jobs.Status) { reports = append(reports, s) }
	if s, err := job.Status(t.Context(), env.Client); err != nil || s != (jobs.Status{}) || s.Complete() {
		t.Errorf("before the job: %+v, error %v", s, err)
	}
	s, err := job.Run(t.Context(), env.Client, increment)
	if err != nil || s.Rows != 100 || !s.Complete() {
		t.Errorf("status %+v, error %v", s, err)
	}
	wantValues(t, env.Client, 100, one)
	for i, r := range reports[1:] {
		if r.Rows < reports[i].Rows || r.Done < reports[i].Done || r.Rows-reports[i].Rows > 7 {
			t.Errorf("report %+v after %+v", r, reports[i])
		}
	}
	if last := reports[len(reports)-1]; last != s {
		t.Errorf("the last report is %+v, the result %+v", last, s)
	}
	if stored, err := job.Status(t.Context(), env.Client); err != nil || stored != s {
		t.Errorf("stored status %+v, error %v, want %+v", stored, err, s)
	}
	// Once more: everything is done.
	if s, err = job.Run(t.Context(), env.Client, increment); err != nil || s.Rows != 100 || !s.Complete() {
		t.Errorf("second run: status %+v, error %v", s, err)
	}
	wantValues(t, env.Client, 100, one)
	if err := job.Forget(t.Context(), env.Client); err != nil {
		t.Fatal(err)
	}
	if s, err := job.Status(t.Context(), env.Client); err != nil || s != (jobs.Status{}) {
		t.Errorf("after Forget: %+v, error %v", s, err)
	}
	if _, err = job.Run(t.Context(), env.Client, increment); err != nil {
		t.Fatal(err)
	}
	wantValues(t, env.Client, 100, func(string) string { return "2" })
}

// TestRange: only rows of the range are handled, those that f deletes and writes elsewhere
// too.
func TestRange(t *testing.T) {
	env := newEnv(t, 100)
	job := newJob()
	job.Range = jobs.Prefix("05")
	s, err := job.Run(t.Context(), env.Client, increment)
	if err != nil || s.Rows != 10 {
		t.Errorf("status %+v, error %v", s, err)
	}
	wantValues(t, env.Client, 100, func(row string) string {
		if strings.HasPrefix(row, "05") {
			return "1"
		}
		return "0"
	})
	job.Name, job.Range = "delete", jobs.Range{Start: "010"}
	s, err = job.Run(t.Context(), env.Client, func(_ context.Context, tx *txn.Txn, row bigtable.Row) error {
		tx.Table("t").Delete(row.Key(), "f", "n")
		return nil
	})
	if err != nil || s.Rows != 90 {
		t.Errorf("status %+v, error %v", s, err)
	}
	wantValues(t, env.Client, 10, func(string) string { return "0" })
}

// TestTwoAtOnce: two processes run a job while a third one writes the same rows. Each
// increment counts once.
func TestTwoAtOnce(t *testing.T) {
	env := newEnv(t, 60)
	job := newJob()
	done := make(chan struct{})
	var writers, runs sync.WaitGroup
	var written atomic.Int64
	writers.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			_, err := env.Client.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
				row, err := tx.Table("t").ReadRow(ctx, fmt.Sprintf("%03d", i%60))
				if err != nil {
					return err
				}
				return increment(ctx, tx, row)
			})
			if err != nil {
				t.Error(err)
				return
			}
			written.Add(1)
		}
	})
	for _, c := range []*txn.Client{env.NewClient(txn.Config{}), env.NewClient(txn.Config{})} {
		runs.Go(func() {
			s, err := job.Run(t.Context(), c, increment)
			if err != nil || s.Rows != 60 || !s.Complete() {
				t.Errorf("status %+v, error %v", s, err)
			}
		})
	}
	runs.Wait()
	close(done)
	writers.Wait()
	sum := int64(0)
	s, err := env.Client.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for row, err := range s.Table("t").ReadRows(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		n, _ := strconv.ParseInt(string(row["f"][0].Value), 10, 64)
		sum += n
	}
	if want := 60 + written.Load(); sum != want {
		t.Errorf("the sum is %d, want %d", sum, want)
	}
}

// TestCrash: the process dies at each of its requests. Another one continues, and each row is
// handled once.
func TestCrash(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	// crash runs the job until its request at, and returns how many requests it sent.
	crash := func(t *testing.T, env *txntest.Env, at int, action txntest.Action) int {
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{LockTTL: 2 * time.Second, TokenTTL: -1, SyncSecondaries: true}, faults.DialOptions()...)
		job := newJob()
		job.Parallel = 1
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		run := func() { _, err := job.Run(ctx, c, increment); done <- err }
		if at == 0 {
			run()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			return len(faults.Calls())
		}
		n := 0
		rule := faults.On(fmt.Sprint("request ", at), func(call txntest.Call) bool { n++; return n == at }, action, 1).Optional()
		go run()
		select {
		case <-rule.Fired():
			synctest.Wait()
			faults.Kill()
			cancel()
			<-done // without an error if the request only cleaned up
			return at
		case err := <-done: // it needed fewer requests
			if err != nil {
				t.Error(err)
			}
			return 0
		}
	}
	fired := 0
	total := 0
	synctest.Test(t, func(t *testing.T) { total = crash(t, newEnv(t, 20), 0, txntest.Crash) })
	for at := 1; at <= total; at += 1 {
		for _, action := range []txntest.Action{txntest.Crash, txntest.HoldResponse} {
			synctest.Test(t, func(t *testing.T) {
				env := newEnv(t, 20)
				if crash(t, env, at, action) > 0 {
					fired++
				}
				job := newJob()
				s, err := job.Run(t.Context(), env.Client, increment)
				if err != nil || s.Rows != 20 || !s.Complete() {
					t.Errorf("request %d, %v: status %+v, error %v", at, action, s, err)
				}
				wantValues(t, env.Client, 20, one)
			})
		}
	}
	if fired < total {
		t.Errorf("only %d of %d crashes happened", fired, 2*total)
	}
}

// TestFunctionFails: an error names the row, ends the run, and undoes only its transaction.
func TestFunctionFails(t *testing.T) {
	env := newEnv(t, 30)
	job := newJob()
	broken := errors.New("broken")
	_, err := job.Run(t.Context(), env.Client, func(ctx context.Context, tx *txn.Txn, row bigtable.Row) error {
		if row.Key() == "015" {
			return broken
		}
		return increment(ctx, tx, row)
	})
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), `"015"`) || !strings.Contains(err.Error(), `"count"`) {
		t.Errorf("error %v", err)
	}
	if s, err := job.Status(t.Context(), env.Client); err != nil || s.Complete() || s.Rows%7 != 0 && s.Done == 0 {
		t.Errorf("status %+v, error %v", s, err)
	}
	if _, err := job.Run(t.Context(), env.Client, increment); err != nil {
		t.Fatal(err)
	}
	wantValues(t, env.Client, 30, one)
}

// TestRate: in virtual time, a bounded job takes as long as its rate says.
func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newEnv(t, 70)
		job := newJob()
		job.RowsPerSecond = 7
		begun := time.Now()
		if _, err := job.Run(t.Context(), env.Client, increment); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took < 9*time.Second || took > 11*time.Second {
			t.Errorf("70 rows at 7 rows per second took %v", took)
		}
	})
}

// TestEnded: an ended context ends a run, also while it waits for its rate.
func TestEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newEnv(t, 70)
		job := newJob()
		job.RowsPerSecond = 0.1
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		s, err := job.Run(ctx, env.Client, increment)
		if !errors.Is(err, context.DeadlineExceeded) || s.Complete() || s.Rows == 0 {
			t.Errorf("status %+v, error %v", s, err)
		}
	})
}

// TestRoundTrips: a transaction of a job reads its position and its rows, and writes both.
func TestRoundTrips(t *testing.T) {
	long.NotUnderRace(t, "one request after the other, and what it costs")
	synctest.Test(t, func(t *testing.T) {
		env := newEnv(t, 20)
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{SchemaMaxAge: time.Hour, TokenTTL: -1}, faults.DialOptions()...)
		job := newJob()
		job.BatchRows, job.Range = 10, jobs.Range{Start: "000", End: "0001"} // plans and handles one row
		job.Name = "warm"
		if _, err := job.Run(t.Context(), c, increment); err != nil {
			t.Fatal(err)
		}
		job.Name, job.Range, job.Parallel = "measured", jobs.Range{Start: "010"}, 1
		stop := errors.New("stop")
		if _, err := job.Run(t.Context(), c, func(context.Context, *txn.Txn, bigtable.Row) error { return stop }); !errors.Is(err, stop) {
			t.Fatal(err)
		}
		s, err := job.Status(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		parts := s.Parts // the emulator divides tables at random keys
		synctest.Wait()
		faults.Reset()
		if _, err := job.Run(t.Context(), c, increment); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		n := faults.Count()
		// One read and one timestamp more, for the plan.
		if n[txntest.StepPrewrite] != 10+parts || n[txntest.StepCommit] != parts || n[txntest.StepSecondaries] != parts || n[txntest.StepRead] != 2*parts+1 || n[txntest.StepOracle] != 2*parts+1 {
			t.Errorf("10 rows in %d parts: requests %v", parts, n)
		}
	})
}

func TestScan(t *testing.T) {
	env := newEnv(t, 200)
	s, err := env.Client.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	last, n := map[int]string{}, 0
	err = jobs.Scan{Snapshot: s, Table: "t", Range: jobs.Prefix("1"), Parallel: 8, Options: []txn.ReadOption{txn.Families("f")}}.Run(t.Context(), env.Client, func(_ context.Context, part int, row bigtable.Row) error {
		mu.Lock()
		defer mu.Unlock()
		if last[part] >= row.Key() {
			t.Errorf("part %d: row %s after %s", part, row.Key(), last[part])
		}
		last[part] = row.Key()
		n++
		return nil
	})
	if err != nil || n != 100 {
		t.Errorf("%d rows, error %v", n, err)
	}
	broken := errors.New("broken")
	err = jobs.Scan{Snapshot: s, Table: "t", Parallel: 8}.Run(t.Context(), env.Client, func(context.Context, int, bigtable.Row) error { return broken })
	if !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
}

// TestPartitions: parts cover a range, without gaps.
func TestPartitions(t *testing.T) {
	env := newEnv(t, 200)
	for _, r := range []jobs.Range{{}, {Start: "1"}, {End: "1"}, jobs.Prefix("1"), {Start: "050", End: "051"}} {
		for _, n := range []int{1, 2, 7, 1000} {
			parts, err := jobs.Partitions(t.Context(), env.Client, "t", r, n)
			if err != nil || len(parts) < 1 || len(parts) > n {
				t.Fatalf("%v in %d: %v, error %v", r, n, parts, err)
			}
			if parts[0].Start != r.Start || parts[len(parts)-1].End != r.End {
				t.Errorf("%v in %d: %v", r, n, parts)
			}
			for i := 1; i < len(parts); i++ {
				if parts[i].Start != parts[i-1].End || parts[i].Start <= parts[i-1].Start {
					t.Errorf("%v in %d: %v", r, n, parts)
				}
			}
		}
	}
}

func TestBadArguments(t *testing.T) {
	env := newEnv(t, 30)
	for name, change := range map[string]func(*jobs.Job){
		"Name":          func(j *jobs.Job) { j.Name = "" },
		"Table":         func(j *jobs.Job) { j.Table = "" },
		"Progress":      func(j *jobs.Job) { j.Progress = "" },
		"Family":        func(j *jobs.Job) { j.Family = "" },
		"BatchRows":     func(j *jobs.Job) { j.BatchRows = 10_001 },
		"Parallel":      func(j *jobs.Job) { j.Parallel = -1 },
		"RowsPerSecond": func(j *jobs.Job) { j.RowsPerSecond = -1 },
		"Reverse":       func(j *jobs.Job) { j.Options = []txn.ReadOption{txn.Reverse()} },
		"empty":         func(j *jobs.Job) { j.Range = jobs.Range{Start: "b", End: "a"} },
	} {
		job := newJob()
		change(&job)
		if _, err := job.Run(t.Context(), env.Client, increment); !errors.Is(err, txn.ErrInvalid) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, n := range []int{0, 1001} {
		if _, err := jobs.Partitions(t.Context(), env.Client, "t", jobs.Range{}, n); !errors.Is(err, txn.ErrInvalid) {
			t.Errorf("%d parts: %v", n, err)
		}
	}
	job := newJob()
	if _, err := job.Run(t.Context(), env.Client, increment); err != nil {
		t.Fatal(err)
	}
	job.Range.Start = "5"
	if _, err := job.Run(t.Context(), env.Client, increment); !errors.Is(err, txn.ErrInvalid) || !strings.Contains(err.Error(), "another name") {
		t.Errorf("another job of the name: %v", err)
	}
}
