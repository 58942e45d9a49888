package workload

import (
	"context"
	"strconv"
	"strings"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/txntest/history"
)

const (
	bankAccounts = 8   // half of them in each table
	bankInitial  = 100 // also the balance of an account that was never written
	// A stored value is unique, and contains the account's balance.
	bankScale = 10_000
)

var bankTables = []string{"checking", "savings"}

func bankKey(w *Worker, i int) string { return bankTables[i%2] + "/" + w.row(strconv.Itoa(i)) }

// Bank moves money between a few accounts in two tables, so that transfers conflict.
// The sum is the same in every snapshot. In the history, accounts are registers.
func Bank() *Workload {
	get := func(ctx context.Context, tx *txn.Txn, key string) (int64, history.Op, error) {
		table, row, _ := strings.Cut(key, "/")
		v, ok, err := tx.Table(table).Get(ctx, row, "bal", "usd")
		if err != nil || !ok {
			return bankInitial, history.Op{F: history.Read, Key: key}, err
		}
		n, err := strconv.ParseInt(string(v), 10, 64)
		return n, history.Op{F: history.Read, Key: key, State: history.Number(n)}, err
	}
	set := func(w *Worker, tx *txn.Txn, key string, balance int64) history.Op {
		table, row, _ := strings.Cut(key, "/")
		n := w.nextElement()*bankScale + balance
		tx.Table(table).Set(row, "bal", "usd", strconv.AppendInt(nil, n, 10))
		return history.Op{F: history.Write, Key: key, N: n}
	}
	transfer := func(ctx context.Context, w *Worker) error {
		from := w.Rand.IntN(bankAccounts)
		to := (from + 1 + w.Rand.IntN(bankAccounts-1)) % bankAccounts
		amount := 1 + w.Rand.Int64N(20)
		return w.attempt(ctx, func(ctx context.Context, tx *txn.Txn) ([]history.Op, error) {
			a, readA, err := get(ctx, tx, bankKey(w, from))
			if err != nil {
				return nil, err
			}
			b, readB, err := get(ctx, tx, bankKey(w, to))
			if err != nil {
				return []history.Op{readA}, err
			}
			moved := min(amount, a%bankScale)
			return []history.Op{
				readA, readB,
				set(w, tx, bankKey(w, from), a%bankScale-moved),
				set(w, tx, bankKey(w, to), b%bankScale+moved),
			}, nil
		})
	}
	readAll := func(ctx context.Context, w *Worker) error {
		return w.look(ctx, func(ctx context.Context, v view) ([]history.Op, error) {
			var ops []history.Op
			sum := int64(0)
			for i, table := range bankTables {
				seen := map[string]int64{}
				for row, err := range v.table(table).ReadRows(ctx, w.rows()) {
					if err != nil {
						return nil, err
					}
					n, err := strconv.ParseInt(string(row["bal"][0].Value), 10, 64)
					if err != nil {
						return nil, err
					}
					seen[row.Key()] = n
				}
				for a := i; a < bankAccounts; a += 2 {
					op := history.Op{F: history.Read, Key: bankKey(w, a)}
					if n, ok := seen[w.row(strconv.Itoa(a))]; ok {
						op.State = history.Number(n)
						sum += n % bankScale
					} else {
						sum += bankInitial
					}
					ops = append(ops, op)
				}
			}
			if sum != bankAccounts*bankInitial {
				return ops, broken("the sum of all accounts is %d at %d, not %d: %v", sum, v.ts, bankAccounts*bankInitial, ops)
			}
			return ops, nil
		})
	}
	return &Workload{
		Name:   "bank",
		Tables: []admin.TableSpec{{Name: bankTables[0], Families: []string{"bal"}}, {Name: bankTables[1], Families: []string{"bal"}}},
		Level:  history.Serializable, // transfers write every cell that they read
		Cell:   cellOf("bal", "usd"),
		Setup:  func(context.Context, *Worker) error { return nil },
		Step: func(ctx context.Context, w *Worker) error {
			if w.Rand.IntN(4) == 0 {
				return readAll(ctx, w)
			}
			return transfer(ctx, w)
		},
		ReadAll: readAll,
	}
}
