package tso

import (
	"testing"

	"github.com/percolator-bigtable/percolator/tso/internal/row"
)

// TestBatchWithoutCallers: no request is sent for a batch whose callers have left, or sent again.
func TestBatchWithoutCallers(t *testing.T) {
	d := NewDirect(nil, DirectConfig{})
	if n := d.waiting(); n != 0 {
		t.Errorf("%d callers wait", n)
	}
	b := &batch{done: make(chan struct{}), joined: 4, live: 3}
	d.forming = b
	if n := d.waiting(); n != 3 {
		t.Errorf("%d callers wait, want 3", n)
	}
	b.live = 0
	if !d.serveNext() || d.serveNext() {
		t.Error("there was one batch")
	}
	if d.answer(b, 0, 4, row.ErrVanished) || d.Stats() != (DirectStats{}) {
		t.Errorf("it tries again: %+v", d.Stats())
	}
}
