package rig

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/percolator-bigtable/percolator/txn"
)

// transfer moves money between two accounts.
func transfer(ctx context.Context, w *worker, t *Task, _ int) error {
	from := rand.IntN(t.Rows)
	to := (from + 1 + rand.IntN(t.Rows-1)) % t.Rows
	_, err := w.client.Update(ctx, func(ctx context.Context, tx *txn.Txn) error {
		table := tx.Table(t.Table)
		for row, change := range map[string]int64{KeyOf(from): -1, KeyOf(to): 1} {
			value, ok, err := table.Get(ctx, row, Family, ColumnOf(0))
			if err != nil {
				return err
			}
			if !ok {
				return fmt.Errorf("account %s is gone", row)
			}
			table.Set(row, Family, ColumnOf(0), Amount(AmountOf(value)+change))
		}
		return nil
	})
	return err
}

// Amount returns the stored form of a sum of money.
func Amount(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

// AmountOf is the inverse of Amount. It returns 0 for no stored value.
func AmountOf(b []byte) int64 {
	if len(b) != 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(b))
}
