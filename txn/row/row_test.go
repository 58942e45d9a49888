package row_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"math/big"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/bigtable"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/row"
	"github.com/percolator-bigtable/percolator/txn/txntest"
	"github.com/percolator-bigtable/percolator/txn/txntest/long"
)

type color string

type address struct {
	Street string
	Lines  []string `json:",omitempty"`
}

type base struct {
	Version uint16 `row:"f:version"`
}

// everything has a field for each encoding.
type everything struct {
	Key string `row:"key"`
	base
	Text     string                          `row:"f:text"`
	Named    color                           `row:"f:named"`
	Optional *string                         `row:"f:optional"`
	Raw      []byte                          `row:"f:raw"`
	Int      int                             `row:"f:int"`
	Small    int8                            `row:"f:small,text"`
	Big      uint64                          `row:"f:big"`
	BigText  uint64                          `row:"f:bigtext,text"`
	Float    float64                         `row:"f:float"`
	Half     float32                         `row:"f:half,text"`
	Yes      bool                            `row:"f:yes"`
	YesText  *bool                           `row:"f:yestext,text"`
	At       time.Time                       `row:"f:at"`
	Took     time.Duration                   `row:"f:took"`
	IP       netip.Addr                      `row:"f:ip"`
	Number   *big.Int                        `row:"f:number"`
	Link     url.URL                         `row:"f:link,binary"`
	Home     address                         `row:"f:home,json"`
	Work     *address                        `row:"f:work,json"`
	Labels   map[string]string               `row:"f:labels,json"`
	Wait     *durationpb.Duration            `row:"f:wait"`
	Roles    map[string]struct{}             `row:"role:*"`
	Counts   map[color]int64                 `row:"count:*"`
	Parts    map[string]*durationpb.Duration `row:"part:*"`
	Any      *anypb.Any                      `row:"f:\xff\x80"`
	Ignored  chan int
}

var things = row.MustTable[everything]("things")

func newEnv(t *testing.T) *txntest.Env {
	t.Helper()
	env := txntest.New(t, txntest.Embedded())
	env.CreateTable("things", "f", "role", "count", "part", "other")
	return env
}

// update runs f in a transaction, which must commit.
func update(t *testing.T, c *txn.Client, f func(ctx context.Context, rows *row.Rows[everything]) error, opts ...txn.TxnOption) {
	t.Helper()
	_, err := c.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error { return f(ctx, things.In(tx)) }, opts...)
	if err != nil {
		t.Fatal(err)
	}
}

func snapshot(t *testing.T, c *txn.Client) *txn.Snapshot {
	t.Helper()
	s, err := c.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func get(t *testing.T, c *txn.Client, key string) everything {
	t.Helper()
	v, ok, err := things.At(snapshot(t, c)).Get(t.Context(), key)
	if err != nil || !ok {
		t.Fatalf("row %s: exists: %v, error: %v", key, ok, err)
	}
	return v
}

// stored returns the commit timestamps and values of a row's cells.
func stored(t *testing.T, c *txn.Client, key string) (values map[string]string, at map[string]bigtable.Timestamp) {
	t.Helper()
	r, err := snapshot(t, c).Table("things").ReadRow(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	values, at = map[string]string{}, map[string]bigtable.Timestamp{}
	for _, items := range r {
		for _, i := range items {
			values[i.Column], at[i.Column] = string(i.Value), i.Timestamp
		}
	}
	return values, at
}

func full(key string) everything {
	link, _ := url.Parse("https://example.com/a?b=c")
	text, yes := "", false
	anything, _ := anypb.New(durationpb.New(time.Minute))
	return everything{
		Key: key, base: base{7}, Text: "größe\x00", Named: "red", Optional: &text, Raw: []byte{},
		Int: math.MinInt, Small: -128, Big: math.MaxUint64, BigText: math.MaxUint64, Float: -0.5, Half: 1.25, Yes: true, YesText: &yes,
		At: time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC), Took: -time.Second, IP: netip.MustParseAddr("::1"), Number: big.NewInt(1 << 40), Link: *link,
		Home: address{Street: "x"}, Work: &address{}, Labels: map[string]string{}, Wait: &durationpb.Duration{},
		Any: anything, Roles: map[string]struct{}{"admin": {}, "": {}, "\x80\xff\x00": {}, "größe": {}}, Counts: map[color]int64{"blue:*,": -1}, Parts: map[string]*durationpb.Duration{"p": durationpb.New(time.Hour)},
	}
}

func equal(t *testing.T, got, want everything) {
	t.Helper()
	if d := cmp.Diff(want, got, protocmp.Transform(), cmp.AllowUnexported(everything{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b *big.Int) bool { return a == b || a != nil && b != nil && a.Cmp(b) == 0 })); d != "" {
		t.Errorf("read a different row (-want +got):\n%s", d)
	}
}

func TestValues(t *testing.T) {
	env := newEnv(t)
	for _, want := range []everything{full("full"), {Key: "zero"}, {Key: "max", Small: 127, Int: math.MaxInt, Float: math.Inf(1), Half: math.MaxFloat32, Labels: map[string]string{"a": ""}}} {
		update(t, env.Client, func(ctx context.Context, rows *row.Rows[everything]) error { return rows.Set(ctx, want) })
		want.At = want.At.UTC()
		equal(t, get(t, env.Client, want.Key), want)
	}
	n := 0
	for v, err := range things.At(snapshot(t, env.Client)).Scan(t.Context(), nil, txn.Reverse(), txn.Limit(2)) {
		if err != nil || v.Key != []string{"zero", "max"}[n] {
			t.Errorf("scanned row %q, error %v", v.Key, err)
		}
		n++
	}
	if n != 2 {
		t.Errorf("scanned %d rows, want 2", n)
	}
}

// TestStoredForm: other programs rely on the encodings.
func TestStoredForm(t *testing.T) {
	env := newEnv(t)
	update(t, env.Client, func(_ context.Context, rows *row.Rows[everything]) error { return rows.Put(full("a")) })
	values, _ := stored(t, env.Client, "a")
	for column, want := range map[string]string{
		"f:version": "\x00\x00\x00\x00\x00\x00\x00\x07", "f:text": "größe\x00", "f:raw": "", "f:int": "\x80\x00\x00\x00\x00\x00\x00\x00", "f:small": "-128",
		"f:bigtext": "18446744073709551615", "f:float": "\xbf\xe0\x00\x00\x00\x00\x00\x00", "f:half": "1.25", "f:yes": "\x01", "f:yestext": "false",
		"f:at": "2026-01-02T03:04:05.000000006Z", "f:ip": "::1", "f:link": "https://example.com/a?b=c", "f:home": `{"Street":"x"}`, "f:labels": "{}", "f:wait": "",
		"role:admin": "", "role:": "", "count:blue:*,": "\xff\xff\xff\xff\xff\xff\xff\xff",
	} {
		if got, ok := values[column]; !ok || got != want {
			t.Errorf("cell %s is %q (exists: %v), want %q", column, got, ok, want)
		}
	}
}

// TestSetWritesChanges: Set writes and deletes what changed, and leaves every other cell.
func TestSetWritesChanges(t *testing.T) {
	env := newEnv(t)
	update(t, env.Client, func(ctx context.Context, rows *row.Rows[everything]) error { return rows.Set(ctx, full("a")) })
	for _, tt := range []struct {
		name   string
		change func(*everything)
		want   string // the columns whose cells changed
	}{
		{"nothing", func(*everything) {}, ""},
		{"one", func(v *everything) { v.Int++ }, "f:int"},
		{"absent", func(v *everything) { v.Optional, v.Raw, v.Wait, v.Work, v.YesText = nil, nil, nil, nil, nil }, "-f:optional -f:raw -f:wait -f:work -f:yestext"},
		{"empty", func(v *everything) { v.Text, v.Raw = "", []byte{} }, "f:raw f:text"},
		{"members", func(v *everything) {
			delete(v.Roles, "admin")
			v.Roles["user"] = struct{}{}
			v.Counts["blue:*,"]++
		}, "-role:admin count:blue:*, role:user"},
		{"all members", func(v *everything) { v.Roles = nil }, "-role: -role:user"},
	} {
		for _, read := range []string{"Get", "Scan", "nothing"} {
			t.Run(tt.name+" after "+read, func(t *testing.T) {
				update(t, env.Client, func(ctx context.Context, rows *row.Rows[everything]) error { return rows.Delete(ctx, "a") })
				v := full("a")
				if tt.name == "empty" {
					v.Raw = nil
				}
				if tt.name == "all members" {
					v.Roles = map[string]struct{}{"": {}, "user": {}}
				}
				update(t, env.Client, func(ctx context.Context, rows *row.Rows[everything]) error { return rows.Set(ctx, v) })
				_, before := stored(t, env.Client, "a")
				update(t, env.Client, func(ctx context.Context, rows *row.Rows[everything]) (err error) {
					v := v
					switch read {
					case "Get":
						v, _, err = rows.Get(ctx, "a")
					case "Scan":
						for v, err = range rows.Scan(ctx, bigtable.SingleRow("a")) {
							if err != nil {
								return err
							}
						}
					default:
						v.Roles, v.Counts = maps.Clone(v.Roles), maps.Clone(v.Counts)
					}
					if err != nil {
						return err
					}
					tt.change(&v)
					if err := rows.Set(ctx, v); err != nil {
						return err
					}
					return rows.Set(ctx, v) // writes nothing more
				})
				_, after := stored(t, env.Client, "a")
				var changed []string
				for c, ts := range after {
					if before[c] != ts {
						changed = append(changed, c)
					}
				}
				for c := range before {
					if _, ok := after[c]; !ok {
						changed = append(changed, "-"+c)
					}
				}
				if got := strings.Join(slices.Sorted(slices.Values(changed)), " "); got != tt.want {
					t.Errorf("changed %q, want %q", got, tt.want)
				}
			})
		}
	}
}

// TestForeignForm: a cell that another program wrote in another form stays as it is, until
// its field changes. A field without a cell reads as zero, and stays without one.
func TestForeignForm(t *testing.T) {
	env := newEnv(t)
	foreign := `{ "Street": "x", "Unknown": 1 }`
	_, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
		tx.Table("things").Set("a", "f", "home", []byte(foreign))
		tx.Table("things").Set("a", "f", "at", []byte("2026-01-02T03:04:05+01:00"))
		tx.Table("things").Set("a", "other", "q", nil)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	update(t, env.Client, func(ctx context.Context, rows *row.Rows[everything]) error {
		v, _, err := rows.Get(ctx, "a")
		if err != nil {
			return err
		}
		v.Text = "new"
		return rows.Set(ctx, v)
	})
	values, _ := stored(t, env.Client, "a")
	want := map[string]string{"f:home": foreign, "f:at": "2026-01-02T03:04:05+01:00", "f:text": "new", "other:q": ""}
	if !maps.Equal(values, want) {
		t.Errorf("the row is %q, want %q", values, want)
	}
	update(t, env.Client, func(ctx context.Context, rows *row.Rows[everything]) error { return rows.Delete(ctx, "a") })
	if values, _ := stored(t, env.Client, "a"); len(values) != 0 {
		t.Errorf("Delete left %q", values)
	}
	if _, ok, err := things.At(snapshot(t, env.Client)).Get(t.Context(), "a"); ok || err != nil {
		t.Errorf("Get of a deleted row: exists: %v, error: %v", ok, err)
	}
}

func TestInsert(t *testing.T) {
	env := newEnv(t)
	insert := func(ctx context.Context, rows *row.Rows[everything]) error {
		return rows.Insert(ctx, everything{Key: "a"})
	}
	update(t, env.Client, insert)
	_, err := env.Client.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error { return insert(ctx, things.In(tx)) })
	if !errors.Is(err, row.ErrExists) || !strings.Contains(err.Error(), `row "a"`) {
		t.Errorf("Insert of a row that exists: %v", err)
	}
	update(t, env.Client, func(ctx context.Context, rows *row.Rows[everything]) error {
		if err := rows.Delete(ctx, "a"); err != nil {
			return err
		}
		return insert(ctx, rows)
	})
}

// onlyOptional has no cell that every row has.
type onlyOptional struct {
	Key string  `row:"key"`
	A   *string `row:"f:a"`
	B   *string `row:"f:b"`
}

// TestTwoWriters: changes of different fields do not conflict, two inserts do.
func TestTwoWriters(t *testing.T) {
	env := newEnv(t)
	update(t, env.Client, func(ctx context.Context, rows *row.Rows[everything]) error { return rows.Set(ctx, full("a")) })
	two := func(first, second func(context.Context, *txn.Txn) error) error {
		t.Helper()
		var both [2]*txn.Txn
		for i, f := range []func(context.Context, *txn.Txn) error{first, second} {
			tx, err := env.Client.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := f(t.Context(), tx); err != nil {
				t.Fatal(err)
			}
			both[i] = tx
		}
		if _, err := both[0].Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, err := both[1].Commit(t.Context())
		return err
	}
	change := func(f func(*everything)) func(context.Context, *txn.Txn) error {
		return func(ctx context.Context, tx *txn.Txn) error {
			rows := things.In(tx)
			v, _, err := rows.Get(ctx, "a")
			f(&v)
			return errors.Join(err, rows.Set(ctx, v))
		}
	}
	if err := two(change(func(v *everything) { v.Text = "1" }), change(func(v *everything) { v.Roles["x"] = struct{}{} })); err != nil {
		t.Errorf("changes of different fields: %v", err)
	}
	if v := get(t, env.Client, "a"); v.Text != "1" || len(v.Roles) != 5 {
		t.Errorf("one change is lost: %q, %v", v.Text, v.Roles)
	}
	optional := row.MustTable[onlyOptional]("things")
	x := "x"
	insert := func(v onlyOptional) func(context.Context, *txn.Txn) error {
		return func(ctx context.Context, tx *txn.Txn) error { return optional.In(tx).Insert(ctx, v) }
	}
	if err := two(insert(onlyOptional{Key: "o", A: &x}), insert(onlyOptional{Key: "o", B: &x})); !errors.Is(err, txn.ErrConflict) {
		t.Errorf("two inserts of one row: %v, want a conflict", err)
	}
}

// TestPut: Put reads nothing, and leaves no cell of a field that is nil.
func TestPut(t *testing.T) {
	env := newEnv(t)
	update(t, env.Client, func(ctx context.Context, rows *row.Rows[everything]) error { return rows.Set(ctx, full("a")) })
	update(t, env.Client, func(_ context.Context, rows *row.Rows[everything]) error { return rows.Put(everything{Key: "a"}) })
	want := full("a")
	equal(t, get(t, env.Client, "a"), everything{Key: "a", Roles: want.Roles, Counts: want.Counts, Parts: want.Parts})
	update(t, env.Client, func(ctx context.Context, rows *row.Rows[everything]) error {
		if err := rows.Put(everything{Key: "a"}); err != nil {
			return err
		}
		return rows.Set(ctx, everything{Key: "a"}) // knows no members, so it reads them
	})
	equal(t, get(t, env.Client, "a"), everything{Key: "a"})
}

// TestRoundTrips counts the requests of each operation exactly.
func TestRoundTrips(t *testing.T) {
	long.NotUnderRace(t, "one request after the other, and what it costs")
	synctest.Test(t, func(t *testing.T) {
		env := newEnv(t)
		faults := txntest.NewFaults(t)
		c := env.NewClient(txn.Config{SchemaMaxAge: time.Hour}, faults.DialOptions()...)
		update(t, c, func(ctx context.Context, rows *row.Rows[everything]) error { return rows.Set(ctx, full("a")) })
		synctest.Wait()
		for _, tt := range []struct {
			name   string
			do     func(ctx context.Context, rows *row.Rows[everything]) error
			reads  int
			writes int
		}{
			{"Set after Get", func(ctx context.Context, rows *row.Rows[everything]) error {
				v, _, err := rows.Get(ctx, "a")
				v.Int++
				return errors.Join(err, rows.Set(ctx, v))
			}, 1, 1},
			{"Set alone", func(ctx context.Context, rows *row.Rows[everything]) error { return rows.Set(ctx, full("a")) }, 1, 1},
			{"Set without a change", func(ctx context.Context, rows *row.Rows[everything]) error { return rows.Set(ctx, full("a")) }, 1, 0},
			{"Insert", func(ctx context.Context, rows *row.Rows[everything]) error { return rows.Insert(ctx, full("b")) }, 1, 1},
			{"Delete", func(ctx context.Context, rows *row.Rows[everything]) error { return rows.Delete(ctx, "b") }, 1, 1},
			{"Put", func(_ context.Context, rows *row.Rows[everything]) error { return rows.Put(full("b")) }, 0, 1},
		} {
			faults.Reset()
			update(t, c, tt.do)
			synctest.Wait()
			n := faults.Count()
			if n[txntest.StepRead] != tt.reads || n[txntest.StepPrewrite] != tt.writes || n[txntest.StepCommit] != tt.writes {
				t.Errorf("%s: %v, want %d reads and %d prewrites", tt.name, n, tt.reads, tt.writes)
			}
		}
	})
}

// TestManyRows: Set finds out itself about rows that Rows does not remember any more.
func TestManyRows(t *testing.T) {
	env := newEnv(t)
	optional := row.MustTable[onlyOptional]("things")
	x := "x"
	run := func(f func(ctx context.Context, rows *row.Rows[onlyOptional]) error) {
		t.Helper()
		if _, err := env.Client.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error { return f(ctx, optional.In(tx)) }); err != nil {
			t.Fatal(err)
		}
	}
	const n = 1010
	key := func(i int) string {
		return "k" + string(rune('a'+i/260)) + string(rune('a'+i/10%26)) + string(rune('a'+i%10))
	}
	run(func(_ context.Context, rows *row.Rows[onlyOptional]) error {
		for i := range n {
			if err := rows.Put(onlyOptional{Key: key(i), A: &x, B: &x}); err != nil {
				return err
			}
		}
		return nil
	})
	run(func(ctx context.Context, rows *row.Rows[onlyOptional]) error {
		var all []onlyOptional
		for v, err := range rows.Scan(ctx, nil) {
			if err != nil {
				return err
			}
			all = append(all, v)
		}
		for _, v := range all {
			v.B = nil
			if err := rows.Set(ctx, v); err != nil {
				return err
			}
		}
		return nil
	})
	seen := 0
	for v, err := range optional.At(snapshot(t, env.Client)).Scan(t.Context(), nil) {
		if err != nil || v.A == nil || v.B != nil {
			t.Fatalf("row %s: A is %v, B is %v, error %v", v.Key, v.A, v.B, err)
		}
		seen++
	}
	if seen != n {
		t.Errorf("%d rows, want %d", seen, n)
	}
}

// TestBadCells: errors name the cell and the field, and a scan can continue after them.
func TestBadCells(t *testing.T) {
	env := newEnv(t)
	for column, bad := range map[string]string{
		"f:int": "1", "f:small": "128", "f:big": "", "f:bigtext": "x", "f:version": "\x00\x00\x00\x00\x00\x01\x00\x00", "f:half": "1e300", "f:yes": "\x02", "f:yestext": "yes",
		"f:at": "today", "f:ip": "here", "f:home": "{", "f:work": "1", "f:wait": "\xff", "count:x": "1", "f:link": "%zz://", "f:number": "many",
	} {
		family, qualifier, _ := strings.Cut(column, ":")
		_, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error {
			tx.Table("things").Set("bad", family, qualifier, []byte(bad))
			tx.Table("things").Set("good", "f", "text", []byte("v"))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		check := func(err error) {
			t.Helper()
			var cell *row.CellError
			if !errors.As(err, &cell) || cell.Cell.Column().Key() != column || !strings.Contains(err.Error(), "things/bad/"+column) {
				t.Errorf("%s: %v", column, err)
			}
		}
		_, ok, err := things.At(snapshot(t, env.Client)).Get(t.Context(), "bad")
		if check(err); ok {
			t.Errorf("%s: Get says that it has a row", column)
		}
		_, err = env.Client.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error { return things.In(tx).Set(ctx, everything{Key: "bad"}) })
		check(err)
		var keys []string
		for v, err := range things.At(snapshot(t, env.Client)).Scan(t.Context(), nil) {
			if keys = append(keys, v.Key); err != nil {
				check(err)
			}
		}
		if len(keys) != 2 || keys[1] != "good" {
			t.Errorf("%s: the scan returned rows %q", column, keys)
		}
		_, err = env.Client.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error { return things.In(tx).Delete(ctx, "bad") })
		if err != nil {
			t.Errorf("Delete of a damaged row: %v", err)
		}
	}
}

// TestBadValues: what cannot be encoded is refused, with the cell's name, and nothing is
// buffered.
func TestBadValues(t *testing.T) {
	env := newEnv(t)
	for name, v := range map[string]everything{
		"empty row key":            {},
		"things/a/f:at":            {Key: "a", At: time.Date(10_000, 1, 1, 0, 0, 0, 0, time.UTC)},
		"things/a/part:p":          {Key: "a", Parts: map[string]*durationpb.Duration{"p": nil}},
		"things/a/f:at, field At:": {Key: "a", At: time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC)},
	} {
		_, err := env.Client.Update(t.Context(), func(ctx context.Context, tx *txn.Txn) error {
			rows := things.In(tx)
			for _, err := range []error{rows.Set(ctx, v), rows.Insert(ctx, v), rows.Put(v)} {
				if !errors.Is(err, txn.ErrInvalid) || !strings.Contains(err.Error(), name) {
					t.Errorf("%s: %v", name, err)
				}
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: an invalid call wrote something: %v", name, err)
		}
	}
	long := everything{Key: strings.Repeat("k", 5000)}
	_, err := env.Client.Update(t.Context(), func(_ context.Context, tx *txn.Txn) error { return things.In(tx).Put(long) })
	if !errors.Is(err, txn.ErrLimit) {
		t.Errorf("a row key that is too long: %v", err)
	}
}

// TestEnded: errors of ended contexts and transactions pass through.
func TestEnded(t *testing.T) {
	env := newEnv(t)
	tx, err := env.Client.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	rows := things.In(tx)
	if _, ok, err := rows.Get(ctx, "a"); ok || !errors.Is(err, context.Canceled) {
		t.Errorf("Get with an ended context: %v", err)
	}
	if err := rows.Set(ctx, everything{Key: "a"}); !errors.Is(err, context.Canceled) {
		t.Errorf("Set with an ended context: %v", err)
	}
	for _, err := range rows.Scan(ctx, nil) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Scan with an ended context: %v", err)
		}
	}
	tx.Rollback()
	if err := rows.Delete(t.Context(), "a"); !errors.Is(err, txn.ErrDone) {
		t.Errorf("Delete after the end: %v", err)
	}
}

// TestCrash: a client dies at the commit of a row with many cells. Other clients see all of it, or
// nothing.
func TestCrash(t *testing.T) {
	long.NotUnderRace(t, "one fault after the other")
	for _, tt := range []struct {
		name   string
		action txntest.Action
		exists bool
	}{{"before", txntest.Crash, false}, {"after", txntest.HoldResponse, true}} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := newEnv(t)
				faults := txntest.NewFaults(t)
				c := env.NewClient(txn.Config{LockTTL: time.Second, TokenTTL: -1}, faults.DialOptions()...)
				rule := faults.OnStep(txntest.StepCommit, tt.action)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error)
				go func() {
					_, err := c.Update(ctx, func(ctx context.Context, tx *txn.Txn) error { return things.In(tx).Set(ctx, full("a")) })
					done <- err
				}()
				<-rule.Fired()
				synctest.Wait()
				faults.Kill()
				cancel()
				if err := <-done; err == nil {
					t.Error("the killed client says that it committed")
				}
				v, ok, err := things.At(snapshot(t, env.Client)).Get(t.Context(), "a")
				if err != nil || ok != tt.exists {
					t.Fatalf("exists: %v, error: %v, want %v", ok, err, tt.exists)
				}
				if ok {
					equal(t, v, full("a"))
				}
			})
		})
	}
}

func TestBadTags(t *testing.T) {
	type key struct {
		Key string `row:"key"`
	}
	check := func(says string, err error) {
		t.Helper()
		if !errors.Is(err, txn.ErrInvalid) || !strings.Contains(err.Error(), says) {
			t.Errorf("error %v; want it to say %q", err, says)
		}
	}
	_, err := row.NewTable[everything]("")
	check("empty table name", err)
	_, err = row.NewTable[int]("t")
	check("rows are structs", err)
	_, err = row.NewTable[key]("t")
	check("family:qualifier", err)
	_, err = row.NewTable[struct {
		A string `row:"f:a"`
	}]("t")
	check(`row:"key"`, err)
	_, err = row.NewTable[struct {
		key
		Key2 string `row:"key"`
	}]("t")
	check("Key2", err)
	_, err = row.NewTable[struct {
		key
		A string `row:"a"`
	}]("t")
	check("neither key nor family:qualifier", err)
	_, err = row.NewTable[struct {
		key
		A string `row:"f:a,xml"`
	}]("t")
	check("json, text and binary", err)
	_, err = row.NewTable[struct {
		key
		A address `row:"f:a"`
	}]("t")
	check("field A", err)
	_, err = row.NewTable[struct {
		key
		A address `row:"f:a,binary"`
	}]("t")
	check("MarshalBinary", err)
	_, err = row.NewTable[struct {
		key
		A *[]byte `row:"f:a"`
	}]("t")
	check("two ways", err)
	_, err = row.NewTable[struct {
		key
		A string `row:"f:*"`
	}]("t")
	check("a map with string keys", err)
	_, err = row.NewTable[struct {
		key
		A map[string]string `row:"f:*"`
		B string            `row:"f:b"`
	}]("t")
	check("field A has the same cells", err)
	_, err = row.NewTable[struct {
		key
		A string `row:"f:a"`
		B string `row:"f:a"`
	}]("t")
	check("field A has the same cells", err)
	_, err = row.NewTable[struct {
		key
		a string `row:"f:a"`
	}]("t")
	check("not exported", err)
	_, err = row.NewTable[struct {
		key
		A string `row:"_lock:a"`
	}]("t")
	check("field A", err)
	_, err = row.NewTable[struct {
		key
		A json.RawMessage `row:":a"`
	}]("t")
	check("field A", err)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("MustTable did not panic")
			}
		}()
		row.MustTable[int]("t")
	}()
}
