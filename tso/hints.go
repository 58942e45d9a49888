package tso

import (
	"context"

	"github.com/percolator-bigtable/percolator/tso/internal/hint"
)

// A Hint says that there may be work for the subscribers of Topic, at Key. Both
// are any bytes; implementations of [Hints] do not interpret them. Topic has 1
// to [MaxHintTopic] bytes, Key at most [MaxHintKey].
type Hint struct {
	Topic string
	Key   string
}

// Hints carry messages about new work from the process that makes it to one of
// the processes that look for it, so that these need not wait for their next
// scan.
//
// Hints are best effort. A hint may be lost (queues are bounded and in memory),
// may arrive twice, and may arrive when the work is done already. So a receiver
// of hints must also look for work without them. If all hints are lost, work
// starts later, and nothing else is wrong.
//
// [Client] implements them, through the memory of the leading server.
type Hints interface {
	// PublishHints sends each hint to one subscriber of its topic. It does not
	// wait for that: it adds the hints to a bounded queue. It drops a hint that
	// is too long or for which the queue has no room. Equal hints in the queue
	// count as one.
	PublishHints(hints ...Hint)

	// SubscribeHints calls deliver with hints of these topics, one call at a
	// time, until ctx ends; then it returns nil. While deliver runs, a bounded
	// number of hints wait; any more are dropped. A process that subscribes
	// twice receives two shares. SubscribeHints fails for topics beyond the
	// limits.
	SubscribeHints(ctx context.Context, topics []string, deliver func(Hint)) error
}

// Limits of hints.
const (
	// MaxHintTopic is the length of a topic, in bytes: 2 KiB.
	MaxHintTopic = hint.MaxTopic

	// MaxHintKey is the length of a key, in bytes: 8 KiB.
	MaxHintKey = hint.MaxKey

	// MaxHintTopics is how many topics one subscription may name: 1000. Their
	// lengths may add up to 32 KiB.
	MaxHintTopics = hint.MaxTopics
)

// HintStats counts hints since the service was started. A hint that none of the
// counters below Received counts waits, or was equal to one that waited.
type HintStats struct {
	Received    uint64 // hints published
	Delivered   uint64 // given to a subscriber
	Dropped     uint64 // found no room, or waited when their subscribers left or the server's term ended
	Unwanted    uint64 // had no subscriber for their topic
	Subscribers int    // at present
}
