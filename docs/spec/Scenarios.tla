----------------------------- MODULE Scenarios ------------------------------
(* Small deployments, one for each configuration. *)
EXTENDS Percolator, TLC

Nothing == [t \in Txns |-> {}]

\* Two transactions write both cells.  The primary of one is a secondary of the other.
CrossedPrimary == "t1" :> "a" @@ "t2" :> "b"
CrossedPuts    == "t1" :> {"a", "b"} @@ "t2" :> {"a", "b"}

\* The secondary of one is the only cell of the other.
SharedPuts     == "t1" :> {"a", "b"} @@ "t2" :> {"b"}

\* One transaction of two cells.
AlonePrimary   == "t1" :> "a"
AlonePuts      == "t1" :> {"a", "b"}

\* t1 writes both cells.  Later, t2 overwrites one of them, or deletes it.
LaterOverwrites == "t1" :> {"a", "b"} @@ "t2" :> {"a"}
OverwrittenPuts == "t1" :> {"a"} @@ "t2" :> {"a"}
FirstPuts       == "t1" :> {"a", "b"} @@ "t2" :> {}
SecondDeletes   == "t1" :> {} @@ "t2" :> {"b"}
Later           == "t1" :> {} @@ "t2" :> {"t1"}
LaterPrimary    == "t1" :> "a" @@ "t2" :> "a"
DeletePrimary   == "t1" :> "a" @@ "t2" :> "b"

\* Each writes the cell that the other one has read: write skew.
SkewPuts  == "t1" :> {"a"} @@ "t2" :> {"b"}
SkewReads == "t1" :> {"b"} @@ "t2" :> {"a"}
BlindReads == "t1" :> {"b"} @@ "t2" :> {}
=============================================================================
