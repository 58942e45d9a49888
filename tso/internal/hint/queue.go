package hint

// A Queue is a bounded queue in which equal hints wait once. Its owner guards
// it.
type Queue struct {
	Ready chan struct{} // has an element when Take has something to return

	order []Hint
	waits map[Hint]struct{}
	bytes int // of all that wait
}

// NewQueue returns an empty queue.
func NewQueue() Queue {
	return Queue{Ready: make(chan struct{}, 1), waits: map[Hint]struct{}{}}
}

// memory is about what the queue holds of memory, in bytes: beside the hint itself,
// the map and the slice have each hint once.
func (q *Queue) memory() int { return q.bytes + 128*len(q.order) }

// Len returns how many hints wait.
func (q *Queue) Len() int { return len(q.order) }

// Add adds a hint. It reports false if there is no room.
func (q *Queue) Add(h Hint) bool {
	if _, ok := q.waits[h]; ok {
		return true
	}
	if len(q.order) >= MaxWaiting || q.bytes+h.size() > maxWaitingBytes {
		return false
	}
	q.bytes += h.size()
	q.waits[h] = struct{}{}
	q.order = append(q.order, h)
	q.wake()
	return true
}

func (q *Queue) wake() {
	select {
	case q.Ready <- struct{}{}:
	default:
	}
}

// Take removes and returns what fits into one message, the oldest first.
func (q *Queue) Take() []Hint {
	n, size := 0, 0
	for n < len(q.order) && n < MaxBatch {
		if size += q.order[n].size(); size > maxBytes {
			break
		}
		q.bytes -= q.order[n].size()
		delete(q.waits, q.order[n])
		n++
	}
	batch := q.order[:n:n]
	if q.order = q.order[n:]; len(q.order) == 0 {
		q.order = nil // so that the batch alone holds the memory
	} else {
		q.wake()
	}
	return batch
}

// Drain removes and returns all hints.
func (q *Queue) Drain() []Hint {
	all := q.order
	q.order, q.bytes = nil, 0
	clear(q.waits)
	return all
}
