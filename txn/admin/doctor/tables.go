package doctor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/bigtable"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn"
	"github.com/percolator-bigtable/percolator/txn/admin"
	"github.com/percolator-bigtable/percolator/txn/admin/words"
	"github.com/percolator-bigtable/percolator/txn/format"
)

// tableTimeout is for one request a table, and there may be hundreds.
const tableTimeout = time.Minute

var schema = Check{Name: "schema records", Client: true, Timeout: tableTimeout, Run: func(ctx context.Context, d *Deployment, r *Result) error {
	for _, table := range d.Tables {
		_, err := admin.Describe(ctx, d.Client, table)
		switch {
		case errors.Is(err, txn.ErrNotInitialized):
			r.find(Error, table, "it has no schema record: it is not transactional", "clients refuse it", "percctl table adopt "+table)
		case errors.Is(err, txn.ErrFormatVersion):
			r.find(Error, table, err.Error(), "another version of the library wrote it", "use that version of percctl and of the library")
		case errors.Is(err, txn.ErrCorrupt):
			r.find(Error, table, err.Error(), "clients refuse the table", "percctl table init "+table+" does not overwrite it: delete row schema/"+table+" of the metadata table, then run it")
		case err != nil:
			return err
		}
	}
	r.Detail = words.Count(len(d.Tables), "table")
	return nil
}}

var families = Check{Name: "families", Client: true, Timeout: tableTimeout, Run: func(ctx context.Context, d *Deployment, r *Result) error {
	for _, table := range d.Tables {
		info, err := d.Admin.TableInfo(ctx, table)
		if status.Code(err) == codes.NotFound {
			r.find(Error, table, "the table does not exist; its schema record does", "clients fail on it", "restore it from a backup; if you deleted it on purpose, delete row schema/"+table+" of the metadata table")
			continue
		}
		if err != nil {
			return cannotLook(err, "bigtable.tables.get")
		}
		var missing []string
		for _, f := range []string{format.LockFamily, format.WriteFamily, format.MarkFamily, format.NotifyFamily, format.AckFamily} {
			if !slices.Contains(info.Families, f) {
				missing = append(missing, f)
			}
		}
		if len(missing) > 0 {
			r.find(Error, table, "it lacks the metadata families "+strings.Join(missing, ", "), "what they held, locks or commit records, is lost", "restore the table from a backup; if it never was transactional, percctl table init "+table)
		}
		described, err := admin.Describe(ctx, d.Client, table)
		if err != nil {
			continue // another check says so
		}
		for _, f := range described.Families {
			if !slices.Contains(info.Families, f) {
				r.find(Error, table+"/"+f, "the schema record names a family that the table does not have", "transactions that read the whole row, or write the family, fail", "percctl table init "+table+" records the families again")
			}
		}
	}
	r.Detail = words.Count(len(d.Tables), "table")
	return nil
}}

var policies = Check{Name: "garbage-collection policies", Timeout: tableTimeout, Run: func(ctx context.Context, d *Deployment, r *Result) error {
	for _, table := range d.Tables {
		info, err := d.Admin.TableInfo(ctx, table)
		switch {
		case status.Code(err) == codes.NotFound:
			continue // another check says so
		case err != nil:
			return cannotLook(err, "bigtable.tables.get")
		}
		slices.SortFunc(info.FamilyInfos, func(a, b bigtable.FamilyInfo) int { return strings.Compare(a.Name, b.Name) })
		for _, f := range info.FamilyInfos {
			checkPolicy(r, d, table, f)
		}
	}
	r.Detail = words.Count(len(d.Tables), "table")
	return nil
}}

// How TableInfo words a family without a policy, and one with an empty rule,
// which only emulators keep.
const (
	noPolicy    = "<never>"
	emptyPolicy = ""
)

func checkPolicy(r *Result, d *Deployment, table string, f bigtable.FamilyInfo) {
	fix := fmt.Sprintf("cbt -project %s -instance %s setgcpolicy %s %s never", d.Project, d.Instance, table, f.Name)
	switch {
	case f.GCPolicy == noPolicy, f.GCPolicy == emptyPolicy && !d.Emulator:
	case f.GCPolicy == emptyPolicy:
		r.find(Warning, table+"/"+f.Name, "its garbage-collection rule is empty instead of absent", "with it, the emulator can lose acknowledged writes; Cloud Bigtable cannot", "create the family with percctl table init instead of cbt createfamily, or adopt the table with --clear-policies")
	default:
		r.find(Error, table+"/"+f.Name, fmt.Sprintf("it has the garbage-collection policy %s", f.GCPolicy), "it deletes versions that transactions still read, locks and commit records; clients refuse the table", fix)
	}
}

var adoptions = Check{Name: "adoptions", Client: true, Timeout: tableTimeout, Run: func(ctx context.Context, d *Deployment, r *Result) error {
	leaving, err := admin.UnfinishedAdoptions(ctx, d.Client)
	if err != nil {
		return err
	}
	r.Detail = words.Count(len(leaving), "adoption") + " unfinished"
	for _, table := range slices.Sorted(maps.Keys(leaving)) {
		if leaving[table] {
			r.find(Warning, table, "it is leaving: percctl table leave was interrupted, or still runs", "some of its rows may be plain already, so neither plain programs nor transactions may use it", fmt.Sprintf("percctl table leave %s, which continues", table))
			continue
		}
		r.find(Warning, table, "its adoption, or undoing it, was interrupted", "its schema record or some of its families may be missing, and then clients refuse it", fmt.Sprintf("percctl table adopt %s or percctl table unadopt %s, which continue", table, table))
	}
	return nil
}}
