package emulator_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"github.com/percolator-bigtable/percolator/tso"
	"github.com/percolator-bigtable/percolator/tso/server"
	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/txntest"
)

var (
	metamorphics    = flag.Int("metamorphics", 25, "how many histories TestMetamorphic runs, each under several options")
	metamorphicSeed = flag.Uint64("metamorphic-seed", 0, "seed of the first of them; 0: by chance")
)

// An action is one step of a history in which transactions overlap. Steps run one after
// the other.
type action struct {
	kind  string // begin, get, row, set, delete, lock, commit, rollback, stale
	txn   int
	key   int
	value string
}

const metamorphicClients = 2

const metamorphicKeys = 8 // in four rows of two tables, with two columns each

func metamorphicCell(key int) txn.Cell {
	return txn.Cell{Table: crashTables[key%2], Row: fmt.Sprintf("row%d", key/4), Family: "f", Qualifier: fmt.Sprintf("q%d", key/2%2)}
}

// plan makes a random history with up to three open transactions at a time.
func plan(rnd *rand.Rand) (actions []action) {
	var open []int
	next := 0
	for range 60 {
		if len(open) == 0 || len(open) < 3 && rnd.IntN(6) == 0 {
			actions = append(actions, action{kind: "begin", txn: next})
			open = append(open, next)
			next++
			continue
		}
		i := rnd.IntN(len(open))
		a := action{txn: open[i], key: rnd.IntN(metamorphicKeys)}
		switch n := rnd.IntN(20); {
		case n < 6:
			a.kind = "get"
		case n < 7:
			a.kind = []string{"row", "stale"}[rnd.IntN(2)]
		case n < 11:
			a.kind, a.value = "set", fmt.Sprintf("v%d", len(actions))
		case n < 13:
			a.kind = "delete"
		case n < 15:
			a.kind = "lock"
		case n < 16:
			a.kind = "rollback"
		default:
			a.kind = "commit"
		}
		if a.kind == "commit" || a.kind == "rollback" {
			open = slices.Delete(open, i, i+1)
		}
		actions = append(actions, a)
	}
	for _, x := range open {
		actions = append(actions, action{kind: "commit", txn: x})
	}
	return actions
}

// expect runs the history on a model of snapshot isolation in memory, and returns what
// each step may show. A stale read may show any state since its client last began or
// committed a transaction.
func expect(actions []action, serializable, stale bool) (out [][]string) {
	type version struct {
		at    int
		value string // "absent" if deleted
		locks bool   // lock-only: no value
	}
	versions := make([][]version, metamorphicKeys)
	type transaction struct {
		start int
		own   map[int]string // value, absent, or "" for a lock
		reads map[int]bool
	}
	txns := map[int]*transaction{}
	since := map[int]int{} // by client
	read := func(t *transaction, key int) string {
		if v, ok := t.own[key]; ok && v != "" {
			return v
		}
		v := "absent"
		for _, ver := range versions[key] {
			if ver.at <= t.start && !ver.locks {
				v = ver.value
			}
		}
		return v
	}
	show := func(any ...string) { out = append(out, any) }
	for now, a := range actions {
		t := txns[a.txn]
		switch a.kind {
		case "begin":
			txns[a.txn] = &transaction{start: now, own: map[int]string{}, reads: map[int]bool{}}
			since[a.txn%metamorphicClients] = now
		case "stale":
			first := now
			if stale {
				first = since[a.txn%metamorphicClients]
			}
			var any []string
			for at := first; at <= now; at++ {
				any = append(any, read(&transaction{start: at}, a.key))
			}
			show(any...)
		case "get":
			if v, ok := t.own[a.key]; !ok || v == "" {
				t.reads[a.key] = true
			}
			show(read(t, a.key))
		case "row":
			if serializable {
				show("refused")
				continue
			}
			var row []string
			for key := range metamorphicKeys {
				if c, d := metamorphicCell(key), metamorphicCell(a.key); c.Table == d.Table && c.Row == d.Row {
					if v := read(t, key); v != "absent" {
						row = append(row, c.Qualifier+"="+v)
					}
				}
			}
			show(strings.Join(row, " "))
		case "set":
			t.own[a.key] = a.value
		case "delete":
			t.own[a.key] = "absent"
		case "lock":
			if _, ok := t.own[a.key]; !ok {
				t.own[a.key] = ""
			}
		case "commit":
			writes := t.own
			if serializable && len(writes) > 0 {
				for key := range t.reads {
					if _, ok := writes[key]; !ok {
						writes[key] = ""
					}
				}
			}
			conflict := false
			for key := range writes {
				for _, v := range versions[key] {
					conflict = conflict || v.at > t.start
				}
			}
			if conflict {
				show("conflict")
				continue
			}
			for key, v := range writes {
				versions[key] = append(versions[key], version{now, v, v == ""})
			}
			since[a.txn%metamorphicClients] = now
			show("committed")
		}
	}
	return out
}

// perform runs the history with real clients.
func perform(ctx context.Context, t *testing.T, clients []*txn.Client, actions []action, opts []txn.TxnOption, staleness time.Duration) (out []string) {
	txns := map[int]*txn.Txn{}
	for _, a := range actions {
		tx, c := txns[a.txn], metamorphicCell(a.key)
		switch a.kind {
		case "begin":
			tx, err := clients[a.txn%len(clients)].Begin(ctx, opts...)
			if err != nil {
				t.Fatal(err)
			}
			txns[a.txn] = tx
		case "get":
			v, ok, err := tx.Table(c.Table).Get(ctx, c.Row, c.Family, c.Qualifier)
			switch {
			case err != nil:
				out = append(out, err.Error())
			case !ok:
				out = append(out, "absent")
			default:
				out = append(out, string(v))
			}
		case "row":
			row, err := tx.Table(c.Table).ReadRow(ctx, c.Row)
			switch {
			case errors.Is(err, txn.ErrSerializableScan):
				out = append(out, "refused")
				continue
			case err != nil:
				t.Fatal(err)
			}
			var items []string
			for _, item := range row["f"] {
				items = append(items, strings.TrimPrefix(item.Column, "f:")+"="+string(item.Value))
			}
			out = append(out, strings.Join(items, " "))
		case "stale":
			s, err := clients[a.txn%len(clients)].Snapshot(ctx, txn.MaxStaleness(staleness), txn.Named(""))
			if err != nil {
				t.Fatal(err)
			}
			v, ok, err := s.Table(c.Table).Get(ctx, c.Row, c.Family, c.Qualifier)
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				v = []byte("absent")
			}
			out = append(out, string(v))
		case "set":
			tx.Table(c.Table).Set(c.Row, c.Family, c.Qualifier, []byte(a.value))
		case "delete":
			tx.Table(c.Table).Delete(c.Row, c.Family, c.Qualifier)
		case "lock":
			tx.Table(c.Table).Lock(c.Row, c.Family, c.Qualifier)
		case "rollback":
			tx.Rollback()
		case "commit":
			switch _, err := tx.Commit(ctx); {
			case err == nil:
				out = append(out, "committed")
			case errors.Is(err, txn.ErrConflict):
				out = append(out, "conflict")
			default:
				out = append(out, err.Error())
			}
		}
	}
	return out
}

// teach makes a client read the columns of rows together, so that it prefetches them
// later.
func teach(ctx context.Context, t *testing.T, c *txn.Client) {
	for _, order := range [][]string{{"q0", "q1"}, {"q1", "q0"}} {
		s, err := c.Snapshot(ctx, txn.Named(""), txn.MaxStaleness(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		for _, table := range crashTables {
			for row := range 6 {
				for _, q := range order {
					if _, _, err := s.Table(table).Get(ctx, fmt.Sprintf("none%d", row), "f", q); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
}

// randomConfig returns a configuration that must not change what a client sees.
func randomConfig(rnd *rand.Rand) txn.Config {
	return txn.Config{
		LockTTL:         []time.Duration{time.Millisecond, 50 * time.Millisecond, 10 * time.Second}[rnd.IntN(3)],
		TokenTTL:        []time.Duration{-1, 0, time.Minute}[rnd.IntN(3)],
		Parallelism:     []int{1, 2, 0}[rnd.IntN(3)],
		SyncSecondaries: rnd.IntN(2) == 0,
		BackgroundBytes: []int{1, 5000, 0}[rnd.IntN(3)],
		PassLocks:       rnd.IntN(2) == 0,
		LatchWait:       []time.Duration{-1, time.Millisecond, 0}[rnd.IntN(3)],
		PrefetchBytes:   []int{-1, 1, 0}[rnd.IntN(3)],
		BatchReads:      rnd.IntN(3),
		SchemaMaxAge:    []time.Duration{time.Millisecond, 0}[rnd.IntN(2)],
	}
}

// servedOracle switches the deployment to a served oracle and starts a server. Its
// connections are pipes in memory.
func servedOracle(t *testing.T, env *txntest.Env) func() tso.Oracle {
	meta := env.Bigtable.OpenTable(format.DefaultMetadataTable)
	if _, err := tso.SetMode(t.Context(), meta, tso.RowConfig{}, tso.ModeServed); err != nil {
		t.Fatal(err)
	}
	s, err := server.New(meta, server.Config{Address: "passthrough:///oracle"})
	if err != nil {
		t.Fatal(err)
	}
	pipe := bufconn.Listen(1 << 16)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, pipe) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return func() tso.Oracle {
		c, err := tso.NewClient(tso.ClientConfig{Addresses: []string{"passthrough:///oracle"}, DialOptions: []grpc.DialOption{
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return pipe.DialContext(ctx) })}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
}

// A lateOracle is set after the configuration that contains it was made.
type lateOracle struct{ tso.Oracle }

// TestMetamorphic runs random histories of overlapping transactions under random
// options. Each step shows the same under all options, and what the model expects.
func TestMetamorphic(t *testing.T) {
	first := *metamorphicSeed
	if first == 0 {
		first = rand.Uint64N(1_000_000_000) + 1
	}
	counts := map[string]int{}
	var used, reused int64
	histories := uint64(*metamorphics)
	if testing.Short() {
		histories = min(histories, 6)
	}
	for i := range histories {
		seed := first + i
		actions := plan(rand.New(rand.NewPCG(seed, 0)))
		for variant := range uint64(3) {
			rnd := rand.New(rand.NewPCG(seed, 1+variant))
			serializable, served := rnd.IntN(2) == 0, rnd.IntN(2) == 0
			var opts []txn.TxnOption
			if serializable {
				opts = append(opts, txn.Serializable())
			}
			if rnd.IntN(4) == 0 {
				opts = append(opts, txn.NoPrefetch())
			}
			staleness := []time.Duration{0, time.Second}[rnd.IntN(2)]
			cfgs := []txn.Config{randomConfig(rnd), randomConfig(rnd)}
			synctest.Test(t, func(t *testing.T) {
				own := &lateOracle{}
				newEnv := []txntest.Option{txntest.Embedded(), txntest.WithoutCheck()} // the check runs below
				if served {
					newEnv = append(newEnv, txntest.WithConfig(txn.Config{Oracle: own}))
				}
				env := txntest.New(t, newEnv...)
				for _, table := range crashTables {
					env.CreateTable(table, "f")
				}
				oracle := func() tso.Oracle { return nil }
				if served {
					oracle = servedOracle(t, env)
					own.Oracle = oracle()
				}
				var clients []*txn.Client
				for _, cfg := range cfgs {
					cfg.Oracle = oracle()
					clients = append(clients, env.NewClient(cfg))
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				for _, c := range clients {
					teach(ctx, t, c)
				}
				got := perform(ctx, t, clients, actions, opts, staleness)
				want := expect(actions, serializable, staleness > 0)
				for i, any := range want {
					if i >= len(got) || !slices.Contains(any, got[i]) {
						t.Errorf("seed %d, variant %d, serializable %v, served %v, staleness %v, %+v: among the steps with a result, step %d must show one of %q:\n%q", seed, variant, serializable, served, staleness, cfgs, i, any, got)
						break
					}
				}
				for _, c := range clients {
					s := c.Stats()
					used += s.PrefetchUsed
					reused += s.ReusedTimestamps
				}
				for _, s := range got {
					counts[s]++
				}
				synctest.Wait()
				env.Check()
			})
			if t.Failed() {
				t.Fatalf("to repeat: go test ./emulator_test -run TestMetamorphic -metamorphics 1 -metamorphic-seed %d", seed)
			}
		}
	}
	t.Logf("%d histories from seed %d: %d commits, %d conflicts, %d reads from the cache, %d timestamps reused", histories, first, counts["committed"], counts["conflict"], used, reused)
}
