package tso

import (
	"context"
	"fmt"
	"slices"
)

// A Hint says that there may be work: for whoever looks after Topic, at Key.
// Both are any bytes, and mean nothing to those who carry them. Topic has 1 to
// [MaxHintTopic] bytes, Key at most [MaxHintKey].
type Hint struct {
	Topic string
	Key   string
}

// Hints carry word of new work from whoever makes it to one of those who look
// for it, so that they need not wait until they find it by themselves.
//
// They are best effort. A hint may be lost (queues are bounded and in memory),
// may come twice, and may come when the work is done already. So whoever takes
// hints also looks for work without them, and nothing is wrong but late when
// all are lost.
//
// Two implementations: [MemoryHints] within a process, and [Client] between
// processes, through the memory of the leading server.
type Hints interface {
	// PublishHints puts hints on their way, each to one subscriber of its
	// topic. It does not wait for that: it puts them into a bounded queue, and
	// drops what has no room there, or is too long. A hint that is equal to one
	// that still waits is one with it.
	PublishHints(hints ...Hint)

	// SubscribeHints calls deliver with hints of these topics, one call at a
	// time, until ctx ends; then it returns nil. While deliver takes its time
	// hints wait, a bounded number of them, and are dropped beyond that. Who
	// subscribes twice has two shares. It fails for topics beyond the limits.
	SubscribeHints(ctx context.Context, topics []string, deliver func(Hint)) error
}

// Limits of hints. They keep one message, of a batch or of a subscription,
// below the 64 KiB that a server takes.
const (
	// MaxHintTopic is the length of a topic, in bytes.
	MaxHintTopic = 2 << 10

	// MaxHintKey is the length of a key, in bytes: a Bigtable row key has up to
	// 4 KiB, and a key may need something beside it.
	MaxHintKey = 8 << 10

	// MaxHintTopics is how many topics one subscription may name. Their lengths
	// may add up to 32 KiB.
	MaxHintTopics = 1000

	// maxHintBatch and maxHintBytes bound one message. A hint counts with
	// hintOverhead beside its own bytes, which is more than its encoding adds.
	maxHintBatch = 1000
	maxHintBytes = 32 << 10
	hintOverhead = 16

	// maxHintsWaiting and maxHintsBytes bound a queue, of a publisher and of a
	// subscriber: several batches. Whoever is further behind than that does not
	// depend on hints to find work.
	maxHintsWaiting = 4096
	maxHintsBytes   = 256 << 10

	// maxHintSubscribers bounds the subscribers of one server. Were all their
	// queues full, they would hold 1 GiB.
	maxHintSubscribers = 4096
)

// check says what is wrong with a hint.
func (h Hint) check() error {
	switch {
	case h.Topic == "" || len(h.Topic) > MaxHintTopic:
		return fmt.Errorf("tso: hint with a topic of %d bytes; it has to be 1 to %d", len(h.Topic), MaxHintTopic)
	case len(h.Key) > MaxHintKey:
		return fmt.Errorf("tso: hint with a key of %d bytes; it has to be %d at most", len(h.Key), MaxHintKey)
	}
	return nil
}

func (h Hint) size() int { return len(h.Topic) + len(h.Key) + hintOverhead }

// checkTopics returns the topics of a subscription, each once.
func checkTopics(topics []string) ([]string, error) {
	topics = slices.Compact(slices.Sorted(slices.Values(topics)))
	if n := len(topics); n == 0 || n > MaxHintTopics {
		return nil, fmt.Errorf("tso: a subscription to %d topics; it has to be 1 to %d", n, MaxHintTopics)
	}
	size := 0
	for _, t := range topics {
		if err := (Hint{Topic: t}).check(); err != nil {
			return nil, err
		}
		size += len(t) + hintOverhead
	}
	if size > maxHintBytes {
		return nil, fmt.Errorf("tso: a subscription to topics of %d bytes altogether, %d for each included; it has to be %d at most, so use more than one", size, hintOverhead, maxHintBytes)
	}
	return topics, nil
}

// hintQueue is a bounded queue in which equal hints wait once. Its owner
// guards it.
type hintQueue struct {
	ready chan struct{} // has an element when there is something to take
	order []Hint
	waits map[Hint]struct{}
	bytes int // of all that wait
}

func newHintQueue() hintQueue {
	return hintQueue{ready: make(chan struct{}, 1), waits: map[Hint]struct{}{}}
}

// add reports whether h waits now.
func (q *hintQueue) add(h Hint) bool {
	if _, ok := q.waits[h]; ok {
		return true
	}
	if len(q.order) >= maxHintsWaiting || q.bytes+h.size() > maxHintsBytes {
		return false
	}
	q.bytes += h.size()
	q.waits[h] = struct{}{}
	q.order = append(q.order, h)
	q.wake()
	return true
}

func (q *hintQueue) wake() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// take removes what fits into one message, the oldest first.
func (q *hintQueue) take() []Hint {
	n, size := 0, 0
	for n < len(q.order) && n < maxHintBatch {
		if size += q.order[n].size(); size > maxHintBytes {
			break
		}
		q.bytes -= q.order[n].size()
		delete(q.waits, q.order[n])
		n++
	}
	batch := q.order[:n:n]
	if q.order = q.order[n:]; len(q.order) == 0 {
		q.order = nil // and its memory is free with the batch
	} else {
		q.wake()
	}
	return batch
}

// drain removes everything.
func (q *hintQueue) drain() []Hint {
	all := q.order
	q.order, q.bytes = nil, 0
	clear(q.waits)
	return all
}
