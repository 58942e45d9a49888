package cli

import (
	"bytes"
	"io"
	"testing"
	"testing/synctest"
	"time"
)

// TestProgress: lines in order, with percentage, rate and time left once they are known.
func TestProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var errs bytes.Buffer
		p := NewProgress(&Streams{Out: io.Discard, Err: &errs})
		for i := range 40 {
			p.Of(float64(i)/40, 100*i, "row")
			p.Set("reading table %s", "accounts")
			<-time.After(500 * time.Millisecond) // virtual
		}
		p.Event("an event")
		p.Part(0)
		p.Set("checking")
		kB := 0
		end := p.During(func() int { kB += 50; return kB })
		<-time.After(3 * time.Second)
		p.Part(0.5)
		<-time.After(3 * time.Second)
		end()
		p.Of(0, 0, "lock") // other work
		p.Set("resolving")
		p.End()
		want := `reading table accounts, 5 %
reading table accounts, 30 %, 200 rows/s, about 14 s left
reading table accounts, 55 %, 200 rows/s, about 9.0 s left
reading table accounts, 80 %, 200 rows/s, about 4.0 s left
an event
checking
checking, 50 %, 500 kB/s, about 6.0 s left
`
		if got := errs.String(); got != want {
			t.Errorf("got\n%swant\n%s", got, want)
		}
	})
}
