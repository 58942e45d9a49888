// Package journal keeps the journal of pending work: which observed cells may have
// notifications. It makes finding them cost what is pending, and not what is stored.
//
// The journal is in the metadata table, in a row for each cell. Before the commit point a client
// writes an entry for each observed cell of the transaction. The worker that removes a cell's
// notifications then removes its entries. So while a change is pending, its cell has an entry. The
// notify cell stays the truth: an entry without one asks for nothing.
//
// docs/design/journal.md says when an entry may be removed, and why.
package journal
