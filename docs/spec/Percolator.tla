----------------------------- MODULE Percolator -----------------------------
(***************************************************************************)
(* How transactions commit, how other clients resolve their locks, and how *)
(* old versions are collected.  Written from docs/protocol.md, gc.md,      *)
(* guarantees.md and storage-format.md, without the code.  README.md says  *)
(* what is left out.                                                       *)
(*                                                                         *)
(* Requests.  A request that was sent may arrive at any later time, and    *)
(* any number of times.  So sent requests are never removed from net, and  *)
(* an answer is what the sender may read at that moment.  An owner that    *)
(* stops taking steps is dead.  Any client may take any owner for dead.    *)
(*                                                                         *)
(* Each cell is a row of its own.  A transaction writes a cell once.       *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets

CONSTANTS
    Txns, Cells, Readers,
    Primary,     \* [Txns -> Cells]
    Puts,        \* [Txns -> SUBSET Cells]
    Deletes,     \* [Txns -> SUBSET Cells]
    Reads,       \* [Txns -> SUBSET Cells]: what a serializable transaction validates
    After,       \* [Txns -> SUBSET Txns]: it begins after these have committed
    Pass,        \* readers may raise the minimum commit_ts
    Collect,     \* "off", "all" (a run that reads every row) or "changes"
    Close,       \* "off"; "start", "commit": which timestamp is compared with the closed one; "raise"
    Once,        \* prewrites arrive at most once (for progress only)
    MaxLookups,  \* how many attempts to resolve a lock begin
    MaxRuns,     \* how many collections begin
    Bug          \* "none", or the name of a planted bug

VARIABLES
    clock,                          \* the oracle's last timestamp
    pc, sts, cts,                   \* owners: state, start_ts, commit_ts
    acked, validated,     \* owners: cells
    settled,                        \* owners: cells whose commit was acknowledged
    lock, data, write, mark, minc,  \* stored cells; the minimum commit_ts in the primary lock
    net, arrived,                   \* requests of other clients and commits; prewrites (Once)
    lookups,                        \* resolvers: a lock that one saw, and its timestamp R
    rts, rd,                        \* readers: timestamp, what they have read
    safe, scanned, resolved, drained, runs, \* collection
    target, raised,                 \* timestamp to close, and the rows whose locks have that minimum
    closed, closedCommits,          \* closed timestamp, what was committed up to it
    commits                         \* history: primaries that were committed

owner   == <<pc, sts, cts, acked, validated, settled>>
store   == <<lock, data, write, mark, minc>>
reader  == <<rts, rd>>
gc      == <<safe, scanned, resolved, drained, runs>>
closing == <<target, raised, closed, closedCommits>>
vars    == <<clock, owner, store, net, arrived, lookups, reader, gc, closing, commits>>

None   == "none"    \* nothing is visible
Unread == "unread"

Writes(t)      == Puts[t] \cup Deletes[t]
Secondaries(t) == Writes(t) \ {Primary[t]}
Max(S)         == CHOOSE x \in S : \A y \in S : y <= x
Own(t, c)      == {w \in write[c] : w.t = t}
Req(op, t, c, ts, old) == [op |-> op, t |-> t, c |-> c, ts |-> ts, old |-> old]

\* An answer enables what the owner does next, and an owner may wait for as long as it likes.  So an
\* owner has the answer to a prewrite when that arrives: a lost or late answer adds no behaviour.
\* Requests of an owner do not arrive after the drained safe point has passed it: this is what
\* collection assumes about time.  Requests of other clients may arrive at any time.
Alive(t) == sts[t] > drained

Init ==
    /\ clock = 0
    /\ pc = [t \in Txns |-> "idle"]
    /\ sts = [t \in Txns |-> 0] /\ cts = [t \in Txns |-> 0]
    /\ acked = [t \in Txns |-> {}]
    /\ validated = [t \in Txns |-> {}] /\ settled = [t \in Txns |-> {}]
    /\ lock = [c \in Cells |-> {}] /\ data = [c \in Cells |-> {}]
    /\ write = [c \in Cells |-> {}] /\ mark = [c \in Cells |-> {}]
    /\ minc = [t \in Txns |-> 0]
    /\ net = {} /\ arrived = {} /\ lookups = {}
    /\ rts = [r \in Readers |-> 0] /\ rd \in [Readers -> {[c |-> c, v |-> Unread, need |-> {}] : c \in Cells}]
    /\ safe = 0 /\ scanned = {} /\ resolved = 0 /\ drained = 0 /\ runs = 0
    /\ target = 0 /\ raised = {} /\ closed = 0 /\ closedCommits = {} /\ commits = {}

-----------------------------------------------------------------------------
(* Owners *)

Begin(t) ==
    /\ pc[t] = "idle"
    /\ \A u \in After[t] : \E x \in commits : x.t = u
    /\ clock' = clock + 1
    /\ sts' = [sts EXCEPT ![t] = clock']
    /\ pc' = [pc EXCEPT ![t] = "prewriting"]     \* and sends all prewrites
    /\ UNCHANGED <<cts, acked, validated, settled, store, net, arrived, lookups, reader, gc, closing, commits>>

\* After every prewrite was acknowledged, and with a look at the safe point.  An owner that has
\* nothing else to check sends its commit at once: it may arrive at any time anyway.
TakeCommitTs(t) ==
    /\ pc[t] = "prewriting"
    /\ acked[t] = Writes(t) \/ Bug = "early-commit-ts"
    /\ sts[t] > safe \/ Bug = "commit-below-safe-point"
    /\ clock' = clock + 1
    /\ cts' = [cts EXCEPT ![t] = clock']
    /\ IF Reads[t] = {} /\ Close = "off" /\ acked[t] = Writes(t)
       THEN /\ net' = net \cup {Req("commit", t, Primary[t], clock', 0)}
            /\ pc' = [pc EXCEPT ![t] = "sent"]
       ELSE /\ pc' = [pc EXCEPT ![t] = "prewritten"]
            /\ UNCHANGED net
    /\ UNCHANGED <<sts, acked, validated, settled, store, arrived, lookups, reader, gc, closing, commits>>

\* A serializable transaction reads its read set again, after it knows its commit_ts.
Validate(t, c) ==
    /\ c \in Reads[t] \ validated[t]
    /\ pc[t] = "prewritten" \/ (Bug = "validate-before-commit-ts" /\ pc[t] = "prewriting" /\ acked[t] = Writes(t))
    /\ lock[c] \subseteq {t} \/ Bug = "validate-ignores-locks"
    /\ \A w \in write[c] : w.c < sts[t]
    /\ validated' = [validated EXCEPT ![t] = @ \cup {c}]
    /\ UNCHANGED <<clock, pc, sts, cts, acked, settled, store, net, arrived, lookups, reader, gc, closing, commits>>

AboveClosed(t) ==
    CASE Close = "start"  -> sts[t] > closed
      [] Close = "commit" -> cts[t] > closed
      [] OTHER            -> TRUE

SendCommit(t) ==
    /\ pc[t] = "prewritten"
    /\ Bug = "early-commit-ts" => acked[t] = Writes(t)
    /\ validated[t] = Reads[t]
    /\ AboveClosed(t) \/ Bug = "no-closed-check"
    /\ net' = net \cup {Req("commit", t, Primary[t], cts[t], 0)}
    /\ pc' = [pc EXCEPT ![t] = "sent"]
    /\ UNCHANGED <<clock, sts, cts, acked, validated, settled, store, arrived, lookups, reader, gc, closing, commits>>

\* The owner takes a new commit_ts if a reader raised the minimum above the old one, or, before it
\* has sent a commit, if the old one was closed.
NewCommitTs(t) ==
    /\ \/ /\ pc[t] = "sent"
          /\ \/ t \in lock[Primary[t]] /\ minc[t] >= cts[t]
             \/ Bug = "new-commit-ts-without-proof" /\ cts[t] < sts[t] + 3
          /\ sts[t] > safe
       \/ Close = "commit" /\ pc[t] = "prewritten" /\ cts[t] <= closed
    /\ clock' = clock + 1
    /\ cts' = [cts EXCEPT ![t] = clock']
    /\ pc' = [pc EXCEPT ![t] = "prewritten"]
    /\ validated' = [validated EXCEPT ![t] = {}]
    /\ UNCHANGED <<sts, acked, settled, store, net, arrived, lookups, reader, gc, closing, commits>>

\* Before a commit was sent, the owner may give up.  It then removes its locks.
Abort(t) ==
    /\ pc[t] \in {"prewriting", "prewritten"}
    /\ \A m \in net : m.op = "commit" => m.t # t
    /\ pc' = [pc EXCEPT ![t] = "aborted"]
    /\ UNCHANGED <<clock, sts, cts, acked, validated, settled, store, net, arrived, lookups, reader, gc, closing, commits>>

\* The owner finds out what came of its commit.  Below the safe point it sends no secondaries, and
\* a marker proves nothing.
Learn(t) ==
    /\ pc[t] = "sent"
    /\ \/ /\ Own(t, Primary[t]) # {}
          /\ pc' = [pc EXCEPT ![t] = IF sts[t] > safe THEN "committed" ELSE "committed below"]
       \/ /\ Own(t, Primary[t]) = {} /\ t \in mark[Primary[t]]
          /\ sts[t] > safe \/ Bug = "marker-below-safe-point"
          /\ pc' = [pc EXCEPT ![t] = "rolled back"]
    /\ UNCHANGED <<clock, sts, cts, acked, validated, settled, store, net, arrived, lookups, reader, gc, closing, commits>>

\* The owner has the acknowledgment of a secondary's commit.  All of them make its claim.
Settle(t, c) ==
    /\ Collect = "changes" /\ pc[t] = "committed" /\ c \in Secondaries(t)
    /\ Own(t, c) # {}
    /\ settled' = [settled EXCEPT ![t] = @ \cup {c}]
    /\ UNCHANGED <<clock, pc, sts, cts, acked, validated, store, net, arrived, lookups, reader, gc, closing, commits>>

-----------------------------------------------------------------------------
(* Requests of owners arrive *)

PutLock(t, c) ==
    /\ lock' = [lock EXCEPT ![c] = @ \cup {t}]
    /\ data' = IF c \in Puts[t] THEN [data EXCEPT ![c] = @ \cup {t}] ELSE data
    /\ minc' = IF c = Primary[t] /\ t \notin lock[c] THEN [minc EXCEPT ![t] = 0] ELSE minc

ArrivePrewrite(t, c) ==
    /\ sts[t] > 0 /\ Alive(t) /\ c \in Writes(t)
    /\ Once => <<t, c>> \notin arrived
    /\ lock[c] = {} \/ Bug = "prewrite-ignores-locks"
    /\ \/ (\A w \in write[c] : w.c < sts[t]) /\ (\A m \in mark[c] : sts[m] < sts[t])
       \/ Bug = "prewrite-ignores-commits" /\ t \notin mark[c] /\ Own(t, c) = {}
    /\ PutLock(t, c)
    /\ arrived' = IF Once THEN arrived \cup {<<t, c>>} ELSE arrived
    /\ acked' = IF pc[t] \in {"prewriting", "prewritten"} THEN [acked EXCEPT ![t] = @ \cup {c}] ELSE acked
    /\ UNCHANGED <<clock, pc, sts, cts, validated, settled, write, mark, net, lookups, reader, gc, closing, commits>>

Unlock(t, c) == lock' = [lock EXCEPT ![c] = @ \ {t}]

ArriveCommit(m) ==
    /\ m.op = "commit" /\ Alive(m.t)
    /\ m.t \in lock[m.c] \/ Bug = "commit-without-lock"
    /\ minc[m.t] < m.ts \/ Bug = "commit-ignores-minimum"
    /\ Unlock(m.t, m.c)
    /\ write' = [write EXCEPT ![m.c] = @ \cup {[t |-> m.t, c |-> m.ts]}]
    /\ commits' = commits \cup {[t |-> m.t, c |-> m.ts]}
    /\ pc' = IF Collect = "off" /\ pc[m.t] = "sent" /\ cts[m.t] = m.ts THEN [pc EXCEPT ![m.t] = "committed"] ELSE pc
    /\ UNCHANGED <<clock, sts, cts, acked, validated, settled, data, mark, minc, net, arrived, lookups, reader, gc, closing>>

\* A secondary is committed without a condition.
ArriveSecondary(t, c) ==
    /\ pc[t] = "committed" \/ (Bug = "secondary-before-primary" /\ pc[t] = "sent")
    /\ Alive(t) /\ c \in Secondaries(t)
    /\ Unlock(t, c)
    /\ write' = [write EXCEPT ![c] = @ \cup {[t |-> t, c |-> cts[t]]}]
    /\ UNCHANGED <<clock, owner, data, mark, minc, net, arrived, lookups, reader, gc, closing, commits>>

\* An owner that has aborted removes its locks without a condition.
ArriveCleanup(t, c) ==
    /\ pc[t] = "aborted" \/ (Bug = "cleanup-after-commit" /\ pc[t] = "sent")
    /\ Alive(t) /\ c \in Writes(t)
    /\ Unlock(t, c)
    /\ data' = [data EXCEPT ![c] = @ \ {t}]
    /\ UNCHANGED <<clock, owner, write, mark, minc, net, arrived, lookups, reader, gc, closing, commits>>

-----------------------------------------------------------------------------
(* Other clients resolve a lock *)

\* A client sees the lock, and asks the oracle for R.  R is between two commit timestamps, so the
\* oracle's last timestamp need not change.
Lookup(t, c) ==
    /\ t \in lock[c] /\ sts[t] > resolved
    /\ Cardinality(lookups) < MaxLookups
    /\ \A l \in lookups : l.t = t /\ l.c = c => l.r <= clock /\ ~Once
    /\ lookups' = lookups \cup {[t |-> t, c |-> c, r |-> clock + 1]}
    /\ UNCHANGED <<clock, owner, store, net, arrived, reader, gc, closing, commits>>

\* It reads the primary: record, marker, lock, nothing, in this order.
Judge(l) ==
    LET p == Primary[l.t] IN
    /\ Bug = "empty-primary-waits" => l.t \in lock[p] \cup mark[p] \/ Own(l.t, p) # {}
    /\ net' = net \cup
        {CASE Own(l.t, p) # {} -> Req("forward", l.t, l.c, Max({w.c : w \in Own(l.t, p)}), 0)
           [] Own(l.t, p) = {} /\ l.t \in mark[p] -> Req("back", l.t, l.c, 0, 0)
           [] Own(l.t, p) = {} /\ l.t \notin mark[p] /\ l.t \in lock[p] -> Req("rollback", l.t, l.c, 0, 0)
           [] OTHER -> IF Bug = "nothing-without-marker" THEN Req("back", l.t, l.c, 0, 0)
                                                         ELSE Req("nothing", l.t, l.c, l.r, 0)}
    /\ UNCHANGED <<clock, owner, store, arrived, lookups, reader, gc, closing, commits>>

\* A lock that appears at or below a resolved safe point comes from a late prewrite.
ResolveLate(t, c) ==
    /\ t \in lock[c] /\ sts[t] <= resolved
    /\ net' = net \cup {Req("back", t, c, 0, 0)}
    /\ UNCHANGED <<clock, owner, store, arrived, lookups, reader, gc, closing, commits>>

\* If a marker was written, the client rolls its cell back.
Back(m) == IF m.c = Primary[m.t] THEN net ELSE net \cup {Req("back", m.t, m.c, 0, 0)}

ArriveRollback(m) ==
    LET p == Primary[m.t] IN
    /\ m.op = "rollback"
    /\ m.t \in lock[p] \/ Bug = "rollback-without-lock"
    /\ Unlock(m.t, p)
    /\ data' = [data EXCEPT ![p] = @ \ {m.t}]
    /\ mark' = IF Bug = "no-marker" THEN mark ELSE [mark EXCEPT ![p] = @ \cup {m.t}]
    /\ net' = Back(m)
    /\ UNCHANGED <<clock, owner, write, minc, arrived, lookups, reader, gc, closing, commits>>

ArriveNothing(m) ==
    LET p == Primary[m.t] IN
    /\ m.op = "nothing"
    /\ m.t \notin lock[p] /\ m.t \notin mark[p]
    /\ (\A w \in write[p] : w.c < m.ts) \/ Bug = "nothing-ignores-commits"
    /\ mark' = [mark EXCEPT ![p] = @ \cup {m.t}]
    /\ net' = Back(m)
    /\ UNCHANGED <<clock, owner, lock, data, write, minc, arrived, lookups, reader, gc, closing, commits>>

ArriveForward(m) ==
    /\ m.op = "forward"
    /\ m.t \in lock[m.c]
    /\ Unlock(m.t, m.c)
    /\ write' = [write EXCEPT ![m.c] = @ \cup {[t |-> m.t, c |-> m.ts]}]
    /\ UNCHANGED <<clock, owner, data, mark, minc, net, arrived, lookups, reader, gc, closing, commits>>

ArriveBack(m) ==
    /\ m.op = "back"
    /\ m.t \in lock[m.c]
    /\ Unlock(m.t, m.c)
    /\ data' = [data EXCEPT ![m.c] = @ \ {m.t}]
    /\ UNCHANGED <<clock, owner, write, mark, minc, net, arrived, lookups, reader, gc, closing, commits>>

-----------------------------------------------------------------------------
(* Readers *)

\* Whether a read is right is decided cell by cell, so a reader reads one cell.  Its timestamp is only
\* compared with those of commits, so the oracle's last one will do.
StartRead(r) ==
    /\ rts[r] = 0 /\ clock > 0
    /\ rts' = [rts EXCEPT ![r] = clock]
    /\ UNCHANGED <<clock, owner, store, net, arrived, lookups, rd, gc, closing, commits>>

Visible(c, ts) ==
    LET old == {w \in write[c] : w.c <= ts}
        new == CHOOSE w \in old : \A x \in old : x.c <= w.c
    IN  CASE old = {}                -> None
          [] old # {} /\ c \in Deletes[new.t] -> None
          [] old # {} /\ c \notin Deletes[new.t] /\ new.t \in data[c] -> new.t
          [] OTHER                   -> "missing"

\* One request shows locks, records and data.  After the answer, the reader checks the safe point.
Read(r) ==
    LET c == rd[r].c
        found == {t \in lock[c] : sts[t] <= rts[r]}
        need  == IF Bug = "read-ignores-locks" THEN {} ELSE found
    IN
    /\ rts[r] > 0
    /\ rts[r] >= safe \/ Bug = "read-below-safe-point"
    /\ rd[r].v = Unread \/ rd[r].need # {}
    /\ rd' = [rd EXCEPT ![r] = [c |-> c, v |-> Visible(c, rts[r]), need |-> need]]
    /\ UNCHANGED <<clock, owner, store, net, arrived, lookups, rts, gc, closing, commits>>

\* The primary shows that the transaction commits above the reader's timestamp, if at all.
Ignore(r, t) ==
    /\ t \in rd[r].need
    /\ \/ \E w \in Own(t, Primary[t]) : w.c > rts[r]
       \/ Pass /\ t \in lock[Primary[t]] /\ minc[t] >= rts[r]
    /\ rd' = [rd EXCEPT ![r].need = @ \ {t}]
    /\ UNCHANGED <<clock, owner, store, net, arrived, lookups, rts, gc, closing, commits>>

\* A reader asks to raise the minimum.  The request names the minimum that it replaces.
Raise(r, t) ==
    /\ Pass /\ t \in rd[r].need
    /\ t \in lock[Primary[t]] /\ minc[t] < rts[r]
    /\ net' = net \cup {Req("raise", t, Primary[t], rts[r], minc[t])}
    /\ UNCHANGED <<clock, owner, store, arrived, lookups, reader, gc, closing, commits>>

ArriveRaise(m) ==
    /\ m.op = "raise"
    /\ m.t \in lock[m.c] \/ Bug = "raise-restores-lock"
    /\ minc[m.t] = m.old \/ Bug = "raise-lowers-minimum"
    /\ minc' = [minc EXCEPT ![m.t] = m.ts]
    /\ lock' = [lock EXCEPT ![m.c] = @ \cup {m.t}]
    /\ UNCHANGED <<clock, owner, data, write, mark, net, arrived, lookups, reader, gc, closing, commits>>

-----------------------------------------------------------------------------
(* Garbage collection *)

\* The fence of a run ends: every client knows the safe point.  Enough time may have passed since
\* the run before, so that no request at or below its safe point arrives any more.
EndFence(p) ==
    /\ Collect # "off" /\ runs < MaxRuns
    /\ p > safe /\ p <= clock
    /\ safe' = p /\ scanned' = {} /\ runs' = runs + 1
    /\ drained' \in {drained, resolved}
    /\ UNCHANGED <<clock, owner, store, net, arrived, lookups, reader, resolved, closing, commits>>

\* The lock phase reads cell by cell, and waits where there is a lock.
ScanLocks(c) ==
    /\ Collect = "all" /\ safe > resolved
    /\ \A t \in lock[c] : sts[t] > safe
    /\ scanned' = scanned \cup {c}
    /\ UNCHANGED <<clock, owner, store, net, arrived, lookups, reader, safe, resolved, drained, runs, closing, commits>>

EndLocks ==
    /\ Collect = "all" /\ safe > resolved
    /\ scanned = Cells \/ Bug = "no-lock-phase"
    /\ resolved' = safe
    /\ UNCHANGED <<clock, owner, store, net, arrived, lookups, reader, safe, scanned, drained, runs, closing, commits>>

NewestUpTo(c, p) ==
    LET old == {w \in write[c] : w.c <= p \/ Bug = "collect-above-safe-point"}
    IN  {w \in old : \A x \in old : x.c <= w.c}

\* Nobody needs the record of w for a lock.
NoLockNeeds(w, c) ==
    \/ c # Primary[w.t] \/ Writes(w.t) = {c} \/ sts[w.t] <= resolved
    \/ settled[w.t] = Secondaries(w.t)
    \/ Bug = "collect-without-claim"

\* A collector decides after it has read a row, and then removes versions without a condition.
SendCollect(c) ==
    /\ \E w \in NewestUpTo(c, safe) :
          \/ /\ Collect = "all" /\ safe > 0 /\ resolved = safe
             /\ net' = net \cup {Req("collect", w.t, c, w.c, sts[w.t])}
          \/ /\ Collect = "changes" /\ safe > 0
             /\ \E x \in write[c] : x.c < w.c /\ NoLockNeeds(x, c)
                   /\ net' = net \cup {Req("remove", x.t, c, x.c, 0)}
    /\ UNCHANGED <<clock, owner, store, arrived, lookups, reader, gc, closing, commits>>

ArriveCollect(m) ==
    /\ \/ /\ m.op = "collect"
          /\ write' = [write EXCEPT ![m.c] = {w \in @ : w.c >= m.ts}]
          /\ data' = [data EXCEPT ![m.c] = {t \in @ : sts[t] >= m.old}]
       \/ /\ m.op = "remove"
          /\ write' = [write EXCEPT ![m.c] = @ \ {[t |-> m.t, c |-> m.ts]}]
          /\ data' = [data EXCEPT ![m.c] = @ \ {m.t}]
    /\ UNCHANGED <<clock, owner, lock, mark, minc, net, arrived, lookups, reader, gc, closing, commits>>

\* Markers and newest deletes go when requests of their time cannot arrive any more.
RemoveMark(c, t) ==
    /\ Collect = "all" /\ safe > 0 /\ resolved = safe
    /\ t \in mark[c] /\ sts[t] <= IF Bug = "markers-early" THEN resolved ELSE drained
    /\ mark' = [mark EXCEPT ![c] = @ \ {t}]
    /\ UNCHANGED <<clock, owner, lock, data, write, minc, net, arrived, lookups, reader, gc, closing, commits>>

RemoveDelete(c) ==
    /\ Collect = "all" /\ safe > 0 /\ resolved = safe
    /\ \E w \in NewestUpTo(c, safe) :
          /\ c \in Deletes[w.t]
          /\ w.c <= IF Bug = "deletes-early" THEN resolved ELSE drained
          /\ write' = [write EXCEPT ![c] = {x \in @ : x.c > w.c}]
          /\ data' = [data EXCEPT ![c] = {t \in @ : sts[t] >= sts[w.t]}]
    /\ UNCHANGED <<clock, owner, lock, mark, minc, net, arrived, lookups, reader, gc, closing, commits>>

-----------------------------------------------------------------------------
(* Closed timestamps *)

\* The fence of a closed timestamp ends: every client knows it.  Commits that were sent before are
\* assumed not to arrive any more.
EndClosing(p) ==
    /\ Close \in {"start", "commit"} /\ closed = 0 /\ p <= clock   \* one is enough
    /\ closed' = p
    /\ closedCommits' = {x \in commits : x.c <= p}
    /\ net' = IF Bug = "late-commit" THEN net
              ELSE {m \in net : m.op = "commit" => IF Close = "start" THEN sts[m.t] > p ELSE m.ts > p}
    /\ UNCHANGED <<clock, owner, store, arrived, lookups, reader, gc, target, raised, commits>>

\* Without a fence, and without an assumption about time: the closer raises the minimum commit_ts in
\* each primary lock, as a reader does, and looks at one row after the other.
StartClosing(p) ==
    /\ Close = "raise" /\ target = 0 /\ p <= clock
    /\ target' = p
    /\ UNCHANGED <<clock, owner, store, net, arrived, lookups, reader, gc, raised, closed, closedCommits, commits>>

RaiseForClosing(t) ==
    /\ target > 0 /\ t \in lock[Primary[t]] /\ minc[t] < target
    /\ net' = net \cup {Req("raise", t, Primary[t], target, minc[t])}
    /\ UNCHANGED <<clock, owner, store, arrived, lookups, reader, gc, closing, commits>>

SeeRaised(c) ==
    /\ target > 0 /\ c \notin raised
    /\ \A t \in lock[c] : Primary[t] = c => minc[t] >= target \/ Bug = "closed-without-raise"
    /\ raised' = raised \cup {c}
    /\ UNCHANGED <<clock, owner, store, net, arrived, lookups, reader, gc, target, closed, closedCommits, commits>>

EndRaising ==
    /\ target > 0 /\ closed = 0 /\ raised = Cells
    /\ closed' = target
    /\ closedCommits' = {x \in commits : x.c <= target}
    /\ UNCHANGED <<clock, owner, store, net, arrived, lookups, reader, gc, target, raised, commits>>

-----------------------------------------------------------------------------

OwnerStep == \E t \in Txns :
    \/ Begin(t) \/ TakeCommitTs(t) \/ SendCommit(t) \/ NewCommitTs(t) \/ Abort(t) \/ Learn(t)
    \/ \E c \in Cells : Validate(t, c) \/ Settle(t, c)

Arrive ==
    \/ \E t \in Txns, c \in Cells : ArrivePrewrite(t, c) \/ ArriveSecondary(t, c) \/ ArriveCleanup(t, c)
    \/ \E m \in net : \/ ArriveCommit(m) \/ ArriveRollback(m) \/ ArriveNothing(m) \/ ArriveForward(m)
                      \/ ArriveBack(m) \/ ArriveRaise(m) \/ ArriveCollect(m)

Resolve ==
    \/ \E t \in Txns, c \in Cells : Lookup(t, c) \/ ResolveLate(t, c)
    \/ \E l \in lookups : Judge(l)

ReaderStep == \E r \in Readers :
    \/ StartRead(r)
    \/ Read(r)
    \/ \E t \in Txns : Ignore(r, t) \/ Raise(r, t)

Collector ==
    \/ \E p \in 1..clock : EndFence(p)
    \/ EndLocks
    \/ \E c \in Cells : \/ ScanLocks(c) \/ SendCollect(c) \/ RemoveDelete(c)
                        \/ \E t \in Txns : RemoveMark(c, t)

Closer ==
    \/ \E p \in 1..clock : EndClosing(p) \/ StartClosing(p)
    \/ EndRaising
    \/ \E c \in Cells : SeeRaised(c)
    \/ \E t \in Txns : RaiseForClosing(t)

Next == OwnerStep \/ Arrive \/ Resolve \/ ReaderStep \/ Collector \/ Closer

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
(* What has to hold *)

\* What a read at ts has to show, by the history of commits.
Expected(c, ts) ==
    LET old == {x \in commits : c \in Writes(x.t) /\ x.c <= ts}
    IN  IF old = {} THEN None
        ELSE LET new == CHOOSE x \in old : \A y \in old : y.c <= x.c
             IN  IF c \in Deletes[new.t] THEN None ELSE new.t

\* Snapshot isolation, first half: a read shows exactly the commits at or below its timestamp, also
\* those that come later.  So all cells of a transaction become visible at once.
ReadsAreRight == \A r \in Readers :
    rd[r].v # Unread /\ rd[r].need = {} => rd[r].v = Expected(rd[r].c, rts[r])

\* The same without readers: where no lock is in the way, a cell shows what is committed.
CellsAreRight == \A c \in Cells : \A ts \in 1..clock :
    ts >= safe /\ (\A t \in lock[c] : sts[t] > ts) => Visible(c, ts) = Expected(c, ts)

\* Second half: two transactions that overlap do not both commit the same cell.
NoOverlap == \A x, y \in commits :
    x.t # y.t /\ Writes(x.t) \cap Writes(y.t) # {} => x.c < sts[y.t] \/ y.c < sts[x.t]

\* A transaction commits once, and every record is that of a commit.
CommitsAreFinal ==
    /\ \A x, y \in commits : x.t = y.t => x = y
    /\ \A c \in Cells : write[c] \subseteq commits

\* An owner does not report a wrong outcome.
OwnersKnow == \A t \in Txns :
    /\ pc[t] \in {"committed", "committed below"} => [t |-> t, c |-> cts[t]] \in commits
    /\ pc[t] \in {"aborted", "rolled back"} => \A x \in commits : x.t # t

\* No permitted read needs the version.
Hidden(x, c) == \E y \in commits :
    c \in Writes(y.t) /\ y.c <= safe /\ (y.c > x.c \/ (y = x /\ c \in Deletes[x.t]))

\* No commit is lost: its record is there, or its lock and the primary's record that decides it.
NothingIsLost == \A x \in commits : \A c \in Writes(x.t) :
    \/ Hidden(x, c)
    \/ /\ x \in write[c] \/ (x.t \in lock[c] /\ x \in write[Primary[x.t]])
       /\ c \in Puts[x.t] => x.t \in data[c]

\* Data without a lock or a record does not stay.
DataHasRecord == Collect = "off" => \A c \in Cells : \A t \in data[c] : t \in lock[c] \/ Own(t, c) # {}

\* What a serializable transaction has read is still so when it commits.
Serializable == \A x \in commits : \A y \in commits :
    x.t # y.t /\ Reads[x.t] \cap Writes(y.t) # {} => y.c < sts[x.t] \/ y.c > x.c

\* What is committed up to a closed timestamp is final.
ClosedIsFinal == {x \in commits : x.c <= closed} = closedCommits

-----------------------------------------------------------------------------
(* Progress.  Owners may die at any step: nothing is assumed of them. *)

Fair ==
    /\ \A t \in Txns, c \in Cells :
          /\ WF_vars(Lookup(t, c)) /\ WF_vars(ArriveCleanup(t, c))
    /\ WF_vars(\E l \in lookups : Judge(l))
    /\ \A r \in Readers : WF_vars(StartRead(r)) /\ WF_vars(Read(r))
    /\ \A t \in Txns, c \in Cells :
          WF_vars(\E m \in net : m.t = t /\ m.c = c /\ (ArriveRollback(m) \/ ArriveNothing(m) \/ ArriveForward(m) \/ ArriveBack(m)))

FairSpec == Spec /\ Fair

ReadersEnd == \A r \in Readers : rts[r] > 0 ~> rd[r].v # Unread /\ rd[r].need = {}
LocksEnd   == <>[](\A c \in Cells : lock[c] = {})
=============================================================================
