package words

import (
	"testing"
	"time"

	"github.com/percolator-bigtable/percolator/tso"
)

func TestTimestamps(t *testing.T) {
	t.Parallel()
	at := tso.FromTime(time.Date(2026, 11, 20, 5, 30, 0, 1000, time.UTC))
	for _, test := range []struct{ got, want string }{
		{Time(0), ""},
		{Time(at), "2026-11-20T05:30:00.000001Z"},
		{Stamp(at), "1795152600000001 (2026-11-20T05:30:00.000001Z)"},
		{Between(at, at+1_500_000), "1.5 s"},
		{Between(at+2000, at), "-2 ms"},
		{Seconds(3), "3.0 s"},
	} {
		if test.got != test.want {
			t.Errorf("%q, want %q", test.got, test.want)
		}
	}
}

func TestDuration(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0 ms", 999 * time.Millisecond: "999 ms", 9900 * time.Millisecond: "9.9 s", 59 * time.Second: "59 s",
		61 * time.Second: "1 min 1 s", 25*time.Hour + time.Minute: "1 d 1 h", 90 * time.Minute: "1 h 30 min", -time.Minute: "-1 min 0 s",
	} {
		if got := Duration(d); got != want {
			t.Errorf("%v: %q, want %q", d, got, want)
		}
	}
}

func TestCount(t *testing.T) {
	t.Parallel()
	if got := Count(1, "lock") + ", " + Count(int64(2), "lock") + ", " + Count(0, "lock"); got != "1 lock, 2 locks, 0 locks" {
		t.Error(got)
	}
}
