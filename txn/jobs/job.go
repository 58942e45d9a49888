package jobs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"cloud.google.com/go/bigtable"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/changes"
	"github.com/percolator-bigtable/percolator/txn/internal/pace"
)

// A Job runs a function over every row of a range. The package comment says what it
// guarantees.
type Job struct {
	// Name names the job. A second Run with the name continues the first one.
	Name string
	// Table and Range say which rows.
	Table string
	Range Range
	// Progress is a transactional table, and Family one of its families, where the job keeps
	// how far it has come, in the row with the job's name and those with keys NAME/0000 and
	// so on. Values of the family must not expire (admin.SetExpiry).
	Progress, Family string
	// Options say which cells of the rows are read, with txn.Columns and txn.Families and
	// nothing else. A row without such a cell is left out.
	Options []txn.ReadOption
	// BatchRows is how many rows a transaction handles at most; 0 is 100. After a conflict,
	// the next attempt handles half as many.
	BatchRows int
	// Parallel is how many transactions run at a time, if the service takes them; 0 is 16. The job has
	// up to four times as many parts, which take turns.
	Parallel int
	// RowsPerSecond bounds the rate of this process; 0 is no bound.
	RowsPerSecond float64
	// Report, if not nil, is called after each transaction, never concurrently.
	Report func(Status)
}

// A Status says how far a job has come.
type Status struct {
	// Parts is how many parts the job has, and Done how many of them are complete. Parts is
	// 0 if the job has not begun.
	Parts, Done int
	// Rows is how many rows the function has handled.
	Rows int64
}

// Complete reports whether all parts are complete.
func (s Status) Complete() bool { return s.Parts > 0 && s.Done == s.Parts }

// batchBytes is how many bytes of values and names a transaction reads at most, except for a
// single larger row.
const batchBytes = 4 << 20

// maxBatchRows bounds BatchRows: each row is locked until the commit.
const maxBatchRows = 10_000

// A plan is the job's first cell: what it is about, and where its parts begin. JSON has bytes
// in base64, because keys need not be text.
type plan struct {
	Table      string   `json:"table"`
	Start, End []byte   // of the range
	Splits     [][]byte `json:"splits"` // where the second and later parts begin
}

// A position says how far a part has come.
type position struct {
	Next []byte `json:"next"` // the first key that is not handled
	Rows int64  `json:"rows"`
	Done bool   `json:"done"`
}

func (j *Job) withDefaults() (Job, error) {
	c := *j
	if c.BatchRows == 0 {
		c.BatchRows = 100
	}
	if c.Parallel == 0 {
		c.Parallel = 16
	}
	fail := func(format string, args ...any) (Job, error) {
		return c, fmt.Errorf("jobs: job %q: %w: %s", c.Name, txn.ErrInvalid, fmt.Sprintf(format, args...))
	}
	switch {
	case c.Name == "" || c.Table == "" || c.Progress == "" || c.Family == "":
		return fail("Name, Table, Progress and Family have to be set")
	case c.BatchRows < 1 || c.BatchRows > maxBatchRows:
		return fail("BatchRows is %d; 1 to %d are possible", c.BatchRows, maxBatchRows)
	case c.Parallel < 1 || c.Parallel > maxParts/4:
		return fail("Parallel is %d; 1 to %d are possible", c.Parallel, maxParts/4)
	case c.RowsPerSecond < 0:
		return fail("RowsPerSecond is %v", c.RowsPerSecond)
	}
	return c, c.Range.check()
}

func (j *Job) planKey() string { return j.Name }

func (j *Job) partKey(part int) string { return fmt.Sprintf("%s/%04d", j.Name, part) }

func (j *Job) partKeys(n int) bigtable.RowList {
	keys := make(bigtable.RowList, n)
	for i := range keys {
		keys[i] = j.partKey(i)
	}
	return keys
}

// Run runs f over every row that no earlier run of the job has handled, and returns when all
// are. f must be safe to repeat. If it returns an error, Run stops and returns it, wrapped;
// what other transactions committed stays. Run again to continue. Several processes may run
// the job at the same time.
func (j *Job) Run(ctx context.Context, client *txn.Client, f func(ctx context.Context, tx *txn.Txn, row bigtable.Row) error) (Status, error) {
	return j.RunBatches(ctx, client, func(ctx context.Context, tx *txn.Txn, rows []bigtable.Row) error {
		for _, row := range rows {
			if err := f(ctx, tx, row); err != nil {
				return fmt.Errorf("row %q: %w", row.Key(), err)
			}
		}
		return nil
	})
}

// RunBatches is Run with a function for all rows of a transaction, at least one.
func (j *Job) RunBatches(ctx context.Context, client *txn.Client, f func(ctx context.Context, tx *txn.Txn, rows []bigtable.Row) error) (Status, error) {
	job, err := j.withDefaults()
	if err != nil {
		return Status{}, err
	}
	parts, err := job.begin(ctx, client)
	if err != nil {
		return Status{}, err
	}
	r := &run{job: job, client: client, f: f, pacer: pace.New(job.Parallel), status: Status{Parts: len(parts)}, rows: make([]int64, len(parts))}
	if job.RowsPerSecond > 0 {
		r.limit = rate.NewLimiter(rate.Limit(job.RowsPerSecond), job.BatchRows)
	}
	g, gctx := errgroup.WithContext(ctx)
	// All parts take turns: otherwise the parts under way would often be on few nodes. Neighbors are
	// often on the same node, and several processes should begin at different parts.
	for _, part := range rand.Perm(len(parts)) {
		g.Go(func() error { return r.part(gctx, part, parts[part]) })
	}
	err = g.Wait()
	return r.status, err
}

// Status reads how far the job has come.
func (j *Job) Status(ctx context.Context, client *txn.Client) (Status, error) {
	job, err := j.withDefaults()
	if err != nil {
		return Status{}, err
	}
	snapshot, err := client.Snapshot(ctx)
	if err != nil {
		return Status{}, err
	}
	var s Status
	cells := snapshot.Table(job.Progress)
	stored, ok, err := cells.Get(ctx, job.planKey(), job.Family, "plan")
	if err == nil {
		err = job.checkLasting(ctx, client)
	}
	if err != nil || !ok {
		return s, err
	}
	parts, err := job.readPlan(stored)
	if err != nil {
		return s, err
	}
	s.Parts = len(parts)
	for row, err := range cells.ReadRows(ctx, job.partKeys(len(parts)), txn.Columns(txn.Column{Family: job.Family, Qualifier: "position"})) {
		if err != nil {
			return s, err
		}
		p, err := decodePosition(row[job.Family][0].Value)
		if err != nil {
			return s, err
		}
		if s.Rows += p.Rows; p.Done {
			s.Done++
		}
	}
	return s, nil
}

// Forget removes what the job has stored of its progress, so that its name can be used again.
// A run that is under way fails.
func (j *Job) Forget(ctx context.Context, client *txn.Client) error {
	job, err := j.withDefaults()
	if err != nil {
		return err
	}
	_, err = client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		cells := tx.Table(job.Progress)
		stored, ok, err := cells.Get(ctx, job.planKey(), job.Family, "plan")
		if err != nil || !ok {
			return err
		}
		parts, err := job.readPlan(stored)
		if err != nil {
			return err
		}
		cells.Delete(job.planKey(), job.Family, "plan")
		for _, key := range job.partKeys(len(parts)) {
			cells.Delete(key, job.Family, "position")
		}
		return nil
	})
	return err
}

// begin returns the parts of the job. The first run plans them.
func (j *Job) begin(ctx context.Context, client *txn.Client) ([]Range, error) {
	// Before the transaction: sampling takes long, and nothing of it must be repeated.
	parts, err := Partitions(ctx, client, j.Table, j.Range, 4*j.Parallel)
	if err != nil {
		return nil, err
	}
	p := plan{Table: j.Table, Start: []byte(j.Range.Start), End: []byte(j.Range.End)}
	for _, part := range parts[1:] {
		p.Splits = append(p.Splits, []byte(part.Start))
	}
	text, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	_, err = client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		cells := tx.Table(j.Progress)
		stored, ok, err := cells.Get(ctx, j.planKey(), j.Family, "plan")
		if err == nil {
			// After the read: it has used the expiries that the client knows now.
			err = j.checkLasting(ctx, client)
		}
		if err != nil {
			return err
		}
		if ok {
			parts, err = j.readPlan(stored)
			return err
		}
		cells.Set(j.planKey(), j.Family, "plan", text)
		for i, part := range parts {
			err = errors.Join(err, position{Next: []byte(part.Start)}.set(cells, j.partKey(i), j.Family))
		}
		return err
	})
	return parts, err
}

// checkLasting fails if the progress expires: without it, a job would begin again.
func (j *Job) checkLasting(ctx context.Context, client *txn.Client) error {
	if err := changes.CheckLasting(ctx, client, j.Progress, j.Family); err != nil {
		return fmt.Errorf("jobs: job %q: its progress: %w", j.Name, err)
	}
	return nil
}

// readPlan returns the parts of a stored plan, unless it is of another job.
func (j *Job) readPlan(stored []byte) ([]Range, error) {
	var p plan
	if err := json.Unmarshal(stored, &p); err != nil {
		return nil, fmt.Errorf("jobs: job %q: its plan in table %q: %w", j.Name, j.Progress, err)
	}
	if have := (Range{string(p.Start), string(p.End)}); p.Table != j.Table || have != j.Range {
		return nil, fmt.Errorf("jobs: job %q: %w: a job of this name is about table %q, range %q; use another name, or Forget that job", j.Name, txn.ErrInvalid, p.Table, have)
	}
	var parts []Range
	start := j.Range.Start
	for _, s := range p.Splits {
		parts = append(parts, Range{start, string(s)})
		start = string(s)
	}
	return append(parts, Range{start, j.Range.End}), nil
}

// A run is one call of Job.Run.
type run struct {
	job    Job
	client *txn.Client
	f      func(context.Context, *txn.Txn, []bigtable.Row) error
	limit  *rate.Limiter // nil without a bound
	pacer  *pace.Pacer

	mu     sync.Mutex
	status Status
	rows   []int64 // by part
}

// part handles the rest of a part.
func (r *run) part(ctx context.Context, part int, rows Range) error {
	next := rows.Start
	for {
		before, after, err := r.batch(ctx, part, Range{next, rows.End})
		if err != nil {
			return fmt.Errorf("jobs: job %q, part %d: %w", r.job.Name, part, err)
		}
		next = string(after.Next)
		r.note(part, after)
		if r.limit != nil {
			if err := r.limit.WaitN(ctx, int(after.Rows-before.Rows)); err != nil {
				return fmt.Errorf("jobs: job %q: %w", r.job.Name, errors.Join(cmp.Or(ctx.Err(), context.DeadlineExceeded), err))
			}
		}
		if after.Done {
			return nil
		}
	}
}

// note updates the status.
func (r *run) note(part int, p position) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.Rows += p.Rows - r.rows[part]
	if r.rows[part] = p.Rows; p.Done {
		r.status.Done++
	}
	if r.job.Report != nil {
		r.job.Report(r.status)
	}
}

// batch handles the next rows of a part in a transaction. rows is the rest of the part, unless
// another process has handled some of it.
func (r *run) batch(ctx context.Context, part int, rows Range) (before, after position, err error) {
	key, family := r.job.partKey(part), r.job.Family
	n := r.job.BatchRows
	turn, err := r.pacer.Begin(ctx)
	if err != nil {
		return before, after, err
	}
	var committing time.Time
	written, took := 0, time.Duration(0)
	defer func() { turn.End(written, took) }()
	attempt := txn.OnAttempt(func(_ context.Context, a txn.Attempt) {
		if a.Err == nil && a.Rows > 0 {
			// Neither the function nor waits for other transactions say how fast the service is.
			written, took = a.Rows, max(0, time.Since(committing)-a.LatchWait-a.LockWait)
		}
	})
	_, err = r.client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		defer func() { committing = time.Now() }()
		limit := n
		n = max(1, n/2) // for the next attempt
		cells := tx.Table(r.job.Progress)
		var batch []bigtable.Row
		var more bool
		var failed error
		var reading sync.WaitGroup
		reading.Go(func() { batch, more, failed = r.read(ctx, tx, rows, limit) })
		stored, ok, err := cells.Get(ctx, key, family, "position")
		reading.Wait()
		if err == nil && !ok {
			err = cmp.Or(r.job.checkLasting(ctx, r.client), errors.New("its progress was removed"))
		}
		if err != nil {
			return err
		}
		if before, err = decodePosition(stored); err != nil || before.Done {
			after = before
			return err
		}
		after = before
		if string(before.Next) != rows.Start {
			rows.Start = string(before.Next)
			batch, more, failed = r.read(ctx, tx, rows, limit)
		}
		if failed != nil {
			return failed
		}
		if after.Rows, after.Done = before.Rows+int64(len(batch)), !more; more {
			after.Next = []byte(batch[len(batch)-1].Key() + "\x00")
		}
		// The first write is the primary.
		if err := after.set(cells, key, family); err != nil || len(batch) == 0 {
			return err
		}
		return r.f(ctx, tx, batch)
	}, txn.Named("job"), txn.NoPrefetch(), attempt)
	return before, after, err
}

// read reads the next rows, as many as fit into a transaction.
func (r *run) read(ctx context.Context, tx *txn.Txn, rows Range, limit int) (batch []bigtable.Row, more bool, err error) {
	if rows.End != "" && rows.Start >= rows.End {
		return nil, false, nil
	}
	size, last := 0, ""
	opts := append(r.job.Options[:len(r.job.Options):len(r.job.Options)], txn.Limit(limit+1))
	for row, err := range tx.Table(r.job.Table).ReadRows(ctx, rows.Rows(), opts...) {
		if err != nil {
			return nil, false, err
		}
		if row.Key() <= last {
			return nil, false, fmt.Errorf("%w: Options has txn.Reverse", txn.ErrInvalid)
		}
		if last = row.Key(); len(batch) == limit || size >= batchBytes {
			return batch, true, nil
		}
		batch = append(batch, row)
		for _, items := range row {
			for _, item := range items {
				size += len(item.Column) + len(item.Value)
			}
		}
	}
	return batch, false, nil
}

// set stores the position of a part.
func (p position) set(cells *txn.Table, key, family string) error {
	text, err := json.Marshal(p)
	if err == nil {
		cells.Set(key, family, "position", text)
	}
	return err
}

func decodePosition(stored []byte) (p position, err error) {
	if err := json.Unmarshal(stored, &p); err != nil {
		return p, fmt.Errorf("jobs: a stored position %q: %w", stored, err)
	}
	return p, nil
}
