// Package hint carries hints about new work: it has their limits, a queue for
// those that wait, and a router that gives each to one subscriber. Publishers
// and subscribers of one process use it, and so does the server for all.
package hint

import (
	"fmt"
	"slices"
)

// A Hint is a tso.Hint.
type Hint struct {
	Topic string
	Key   string
}

// Limits of hints. They keep one message, of a batch or of a subscription,
// below the 64 KiB that a server accepts.
const (
	// MaxTopic is the length of a topic, in bytes.
	MaxTopic = 2 << 10

	// MaxKey is the length of a key, in bytes: a Bigtable row key has up to
	// 4 KiB, and a key may need something beside it.
	MaxKey = 8 << 10

	// MaxTopics is how many topics one subscription may name.
	MaxTopics = 1000

	// MaxBatch and maxBytes bound one message. A hint counts with overhead
	// beside its own bytes, which is more than its encoding adds.
	MaxBatch = 1000
	maxBytes = 32 << 10
	overhead = 16

	// MaxWaiting and maxWaitingBytes bound a queue, of a publisher and of a
	// subscriber: several batches. A subscriber with a longer queue does not
	// depend on hints to find work.
	MaxWaiting      = 4096
	maxWaitingBytes = 256 << 10

	// maxSubscribers bounds the subscribers of one router. If all their queues
	// were full, they would hold 1 GiB.
	maxSubscribers = 4096
)

// Check says what is wrong with a hint.
func (h Hint) Check() error {
	switch {
	case h.Topic == "" || len(h.Topic) > MaxTopic:
		return fmt.Errorf("tso: hint with a topic of %d bytes; it has to be 1 to %d", len(h.Topic), MaxTopic)
	case len(h.Key) > MaxKey:
		return fmt.Errorf("tso: hint with a key of %d bytes; it has to be %d at most", len(h.Key), MaxKey)
	}
	return nil
}

func (h Hint) size() int { return len(h.Topic) + len(h.Key) + overhead }

// CheckTopics returns the topics of a subscription, each once.
func CheckTopics(topics []string) ([]string, error) {
	topics = slices.Compact(slices.Sorted(slices.Values(topics)))
	if n := len(topics); n == 0 || n > MaxTopics {
		return nil, fmt.Errorf("tso: a subscription to %d topics; it has to be 1 to %d", n, MaxTopics)
	}
	size := 0
	for _, t := range topics {
		if err := (Hint{Topic: t}).Check(); err != nil {
			return nil, err
		}
		size += len(t) + overhead
	}
	if size > maxBytes {
		return nil, fmt.Errorf("tso: a subscription to topics of %d bytes altogether, %d for each included; it has to be %d at most, so use more than one", size, overhead, maxBytes)
	}
	return topics, nil
}
