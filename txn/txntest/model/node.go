package model

import "time"

// A node has one queue for requests of single rows and for scans. A scan goes through it in slices
// of a quantum, so each scan delays a request by a quantum at most.
type node struct {
	until         time.Time     // when the queue is empty
	points, scans time.Duration // time that it worked
	lastPoint     time.Time     // when the last request of a single row came
	long          []*longSlice  // slices at the end of the queue
}

const (
	quantum = 5 * time.Millisecond // of a node's work on one scan; assumed
	// A node that gets no requests of single rows for a while works on a scan in longer slices. It
	// does the same work with fewer events.
	slice = 100 * time.Millisecond
	quiet = 100 * time.Millisecond
)

// A longSlice is a slice of a scan. If it is longer than a quantum, a request of a single row cuts
// it short.
type longSlice struct {
	work time.Duration
	end  time.Time
	cut  chan struct{} // closed when work and end are less; nil: never
}

// point reserves the work of a request for a single row.
func (n *node) point(at time.Time, work time.Duration) time.Time {
	n.lastPoint = at
	n.points += work
	n.cut(at)
	return take(&n.until, at, work)
}

// cut ends long slices after the quantum that is under way.
func (n *node) cut(at time.Time) {
	if len(n.long) == 0 {
		return
	}
	begins := n.until
	for _, l := range n.long {
		begins = begins.Add(-l.work)
	}
	end := begins
	for _, l := range n.long {
		keep := min(quantum, l.work)
		if passed := at.Sub(begins); passed > 0 {
			keep = min(l.work, (passed/quantum+1)*quantum)
		}
		begins, end = begins.Add(l.work), end.Add(keep)
		n.scans -= l.work - keep
		l.work, l.end = keep, end
		close(l.cut)
	}
	n.until, n.long = end, nil
}

// scan reserves a slice of the work of a scan.
func (n *node) scan(now time.Time, work time.Duration) *longSlice {
	s := &longSlice{work: min(work, quantum)}
	if now.Sub(n.lastPoint) > quiet {
		s.work = min(work, slice)
		s.cut = make(chan struct{})
		if !n.until.After(now) {
			n.long = nil
		}
		n.long = append(n.long, s)
	} else {
		n.long = nil
	}
	n.scans += s.work
	s.end = take(&n.until, now, s.work)
	return s
}
