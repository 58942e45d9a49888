package buffer

import (
	"bytes"
	"slices"
	"strings"

	"cloud.google.com/go/bigtable"

	"github.com/percolator-bigtable/percolator/txn/format"
	"github.com/percolator-bigtable/percolator/txn/internal/store"
)

// An Overlay is a copy of the buffered puts and deletes of some rows of one table. A scan
// applies it to the rows that it reads.
type Overlay struct {
	rows map[string][]store.Write
	keys []string // the keys of rows, ascending

	deletes int // the largest number of deletes in a row
}

// add copies the writes of a row.
func (o *Overlay) add(row string, cols rowBuffer, sel store.Selection) {
	deletes := 0
	for w := range cols.all {
		if w.Kind == format.KindLock || !sel.Has(w.Cell.Column()) {
			continue
		}
		own := *w
		if sel.KeysOnly {
			own.Value = nil
		}
		if w.Kind == format.KindDelete {
			deletes++
		}
		o.rows[row] = append(o.rows[row], own)
	}
	if o.deletes = max(o.deletes, deletes); len(o.rows[row]) > 0 {
		o.keys = append(o.keys, row)
	}
}

// Widen returns the selection of a read to which the overlay will be applied. If the read wants
// the first cells of rows, it needs more of them, because the overlay may remove some.
func (o *Overlay) Widen(sel store.Selection) store.Selection {
	if o != nil && sel.First > 0 {
		sel.First += o.deletes
	}
	return sel
}

// Apply returns a row as read from Bigtable with the buffered writes of that row applied, or
// nil if no cell is left.
func (o *Overlay) Apply(key string, row bigtable.Row) bigtable.Row {
	writes := o.rows[key]
	if len(writes) == 0 {
		return row
	}
	out := bigtable.Row{}
	for family, items := range row {
		out[family] = slices.Clone(items)
	}
	for _, w := range writes {
		items := out[w.Cell.Family]
		i, found := slices.BinarySearchFunc(items, w.Cell.Column().Key(), func(it bigtable.ReadItem, c string) int {
			return strings.Compare(it.Column, c)
		})
		item := bigtable.ReadItem{Row: key, Column: w.Cell.Column().Key(), Value: bytes.Clone(w.Value)}
		switch {
		case w.Kind == format.KindDelete && found:
			items = slices.Delete(items, i, i+1)
		case w.Kind == format.KindDelete:
		case found:
			items[i] = item
		default:
			items = slices.Insert(items, i, item)
		}
		if len(items) == 0 {
			delete(out, w.Cell.Family)
		} else {
			out[w.Cell.Family] = items
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// Next returns the first remaining row key in the direction of the scan. ok is false if none
// remains.
func (o *Overlay) Next(reverse bool) (key string, ok bool) {
	switch {
	case len(o.keys) == 0:
		return "", false
	case reverse:
		return o.keys[len(o.keys)-1], true
	}
	return o.keys[0], true
}

// DropNext removes the row key that Next returns.
func (o *Overlay) DropNext(reverse bool) {
	if reverse {
		o.keys = o.keys[:len(o.keys)-1]
	} else {
		o.keys = o.keys[1:]
	}
}
