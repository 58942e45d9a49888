package protocol

// A Bug is a mistake that can be planted in the model, to show that Explore finds it.
type Bug uint8

// The planted bugs.
const (
	NoBug Bug = iota

	// Owners.
	PrewriteIgnoresWrites      // prewrites do not look for records at or above S
	PrewriteIgnoresLocks       // prewrites do not look for locks
	PrewriteIgnoresMarkers     // prewrites do not look for markers
	PrewriteNotAwaited         // the commit does not wait for the prewrite of the last row
	CommitTSBeforeLocks        // the owner takes its commit_ts before it has all locks
	CommitWithoutLock          // the commit of the primary does not require its lock
	CommitIgnoresMinimum       // the commit of a passable primary ignores the raised minimum
	NewCommitTSAfterTimeout    // the owner takes a new commit_ts when the answer is lost
	AbortAfterCommit           // the owner removes its locks unconditionally after it sent a commit
	GiveUpKeepsStart           // an owner that gave up its locks prewrites again at the same start_ts
	CommitIgnoresSafePoint     // the owner does not check the safe point after its prewrites
	SecondariesIgnoreSafePoint // the owner does not check it before it commits secondaries
	HeartbeatWithoutLock       // the heartbeat does not require the lock that it writes
	AbortLeavesUnanswered      // the abort leaves a row out though the answer to a prewrite of it is missing
	HeartbeatLowersMinimum     // the heartbeat undoes a raised minimum
	HeartbeatUndoesSeal        // the heartbeat undoes a seal
	AheadLowersMinimum         // the heartbeat ahead of the readers does not require a lower minimum
	SealLowersMinimum          // a seal does not require a lower minimum
	SealWithoutLock            // a seal does not require the lock

	// Resolvers.
	RollBackWithoutMarker     // a primary lock is removed, and no marker is left
	RollBackWithoutLock       // the rollback of a primary does not require its lock
	EmptyPrimaryWithoutMarker // an empty primary counts as rolled back, and no marker is left
	UndecidedAsOfNow          // the timestamp for store.Undecided is newer than the read
	SecondaryDecides          // a secondary is rolled back while its primary is empty
	LateLocksJudgedByOutcome  // a lock that appears below the safe point is rolled forward

	// Readers.
	ReadIgnoresLocks            // a read does not look for locks
	ReadIgnoresUndecided        // a read ignores the lock of a transaction that has not committed
	PassWithoutRaise            // a read passes a lock without raising its minimum
	PassSealed                  // a read raises the minimum of a sealed lock
	LatestIgnoresSecondaryLocks // a read of the latest state ignores every lock above it
	LatestIgnoresOlderLocks     // a read of the latest state ignores undecided locks below it
	ReadIgnoresSafePoint        // a read does not check the safe point

	// Collectors.
	LocksNotResolvedFirst // a collector does not resolve locks before it collects
	MarkersCollectedEarly // markers are collected without waiting for a retention
	DeletesCollectedEarly // newest deletes are, too

	// Collections that follow changes.
	FollowRemovesAll       // a record goes that a lock may need
	FollowRemovesMarks     // rollback markers go
	FollowRemovesDeletes   // newest deletes go
	ClaimBeforeSecondaries // the client claims a commit whose secondaries are not acknowledged
	ClaimAfterUnknown      // the client claims a commit with an unknown outcome
	NumberBelowClaim       // a commit gets the client's number though its claim is at or above S

	// Of Progress.
	EverybodyWaits // also a younger transaction waits for an older one's lock
	NobodyWaits    // also an older transaction gives up
	NobodyResolves // the locks of transactions that have ended stay

	bugs
)

// String returns the name of a bug.
func (b Bug) String() string {
	return [bugs]string{
		"",
		"prewrite ignores writes",
		"prewrite ignores locks",
		"prewrite ignores markers",
		"prewrite not awaited",
		"commit_ts before locks",
		"commit without lock",
		"commit ignores minimum",
		"new commit_ts after timeout",
		"abort after commit",
		"give up keeps start_ts",
		"commit ignores safe point",
		"secondaries ignore safe point",
		"heartbeat without lock",
		"abort leaves unanswered",
		"heartbeat lowers minimum",
		"heartbeat undoes seal",
		"ahead lowers minimum",
		"seal lowers minimum",
		"seal without lock",
		"roll back without marker",
		"roll back without lock",
		"empty primary without marker",
		"undecided as of now",
		"secondary decides",
		"late locks judged by outcome",
		"read ignores locks",
		"read ignores undecided",
		"pass without raise",
		"pass sealed",
		"latest ignores secondary locks",
		"latest ignores older locks",
		"read ignores safe point",
		"locks not resolved first",
		"markers collected early",
		"deletes collected early",
		"follow removes all",
		"follow removes marks",
		"follow removes deletes",
		"claim before secondaries",
		"claim after unknown",
		"number below claim",
		"everybody waits",
		"nobody waits",
		"nobody resolves",
	}[b]
}
