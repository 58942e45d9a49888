package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/bigtable"
	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/percolator-bigtable/percolator/txn/admin/words"
)

var metadataTable = Check{Name: "metadata table", Timeout: 30 * time.Second, Run: func(ctx context.Context, d *Deployment, r *Result) error {
	name := d.MetadataTable
	info, err := d.Admin.TableInfo(ctx, name)
	if status.Code(err) == codes.NotFound {
		r.find(Error, name, "it does not exist", "it holds the oracle and the schemas of the tables; without it no transaction can begin", "create it with percctl table init TABLE --families … or percctl table adopt TABLE; if it has another name, add --metadata-table")
		return nil
	}
	if err != nil {
		return cannotLook(err, "bigtable.tables.get")
	}
	missing := []string{"tso", "meta"}
	for _, f := range info.FamilyInfos {
		missing = slices.DeleteFunc(missing, func(m string) bool { return m == f.Name })
		checkPolicy(r, d, name, f)
	}
	if len(missing) > 0 {
		r.find(Error, name, "it lacks families: "+strings.Join(missing, ", "), "clients and the oracle write there", "percctl table init TABLE, with the name of a transactional table")
	}
	if d.Client == nil && len(r.Findings) == 0 {
		r.find(Error, name, "it cannot be used: "+d.NoClient.Error(), "no client can begin a transaction", "fix what the message says")
	}
	r.Detail = name
	return nil
}}

const (
	whyProfile = "transactions need conditional mutations, which Bigtable allows for single-cluster routing only"
	fixProfile = "gcloud bigtable app-profiles update %s --instance=%s --route-to=CLUSTER --transactional-writes; or another profile with --app-profile"
)

var appProfile = Check{Name: "app profile", Timeout: 15 * time.Second, Run: func(ctx context.Context, d *Deployment, r *Result) error {
	name := d.AppProfile
	if name == "" {
		name = "default"
	}
	if d.Instances == nil {
		return skip("cannot be checked here: the emulator has no such thing")
	}
	instances, err := d.Instances(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = instances.Close() }()
	p, err := instances.GetAppProfile(ctx, d.Instance, name)
	fix := fmt.Sprintf(fixProfile, name, d.Instance)
	if status.Code(err) == codes.NotFound {
		r.find(Error, name, "there is no such app profile", "every request to Bigtable names an app profile", fix)
		return nil
	}
	if err != nil {
		return cannotLook(err, "bigtable.appProfiles.get")
	}
	judgeProfile(r, name, fix, p)
	r.Detail = name
	return nil
}}

// judgeProfile says what is wrong with a profile.
func judgeProfile(r *Result, name, fix string, p *adminpb.AppProfile) {
	switch single := p.GetSingleClusterRouting(); {
	case single == nil:
		r.find(Error, name, "it routes to several clusters", whyProfile, fix)
	case !single.AllowTransactionalWrites:
		r.find(Error, name, "it does not allow single-row transactions", whyProfile, fix)
	}
}

// singleRow sends a conditional mutation whose condition never holds: it shows
// whether they are allowed, and changes nothing.
var singleRow = Check{Name: "single-row transactions", Timeout: 15 * time.Second, Run: func(ctx context.Context, d *Deployment, r *Result) error {
	never := bigtable.NewMutation()
	never.DeleteRow()
	err := d.Bigtable.OpenTable(d.MetadataTable).Apply(ctx, "doctor", bigtable.NewCondMutation(bigtable.BlockAllFilter(), never, nil))
	switch status.Code(err) {
	case codes.FailedPrecondition:
		r.find(Error, "the app profile", "Bigtable refuses conditional mutations: "+err.Error(), whyProfile, fmt.Sprintf(fixProfile, "PROFILE", d.Instance))
		return nil
	case codes.PermissionDenied:
		r.find(Error, d.MetadataTable, "this account may not write: "+err.Error(), "every transaction writes", "grant roles/bigtable.user")
		return nil
	case codes.NotFound:
		return skip("it needs the metadata table")
	}
	r.Detail = "conditional mutations are allowed"
	return err
}}

// What a client needs on each table, and what percctl needs beside it.
var (
	clientPermissions   = []string{"bigtable.tables.readRows", "bigtable.tables.sampleRowKeys", "bigtable.tables.mutateRows"}
	operatorPermissions = []string{"bigtable.tables.get"}
)

var permissions = Check{Name: "permissions", Timeout: tableTimeout, Run: func(ctx context.Context, d *Deployment, r *Result) error {
	all := append(slices.Clone(clientPermissions), operatorPermissions...)
	for _, table := range append([]string{d.MetadataTable}, d.Tables...) {
		has, err := d.Admin.TableIAM(table).TestPermissions(ctx, all)
		if err != nil {
			return cannotLook(err, "the permission to ask for its permissions")
		}
		var lacks []string
		for _, p := range all {
			if !slices.Contains(has, p) {
				lacks = append(lacks, p)
			}
		}
		if len(lacks) > 0 {
			severity := Error
			if !slices.ContainsFunc(lacks, func(p string) bool { return slices.Contains(clientPermissions, p) }) {
				severity = Note
			}
			r.find(severity, table, "this account lacks "+strings.Join(lacks, ", "), "clients that run as this account cannot work with the table", "grant roles/bigtable.user, and roles/bigtable.viewer to look at policies")
		}
	}
	r.Detail = words.Count(len(d.Tables)+1, "table")
	return nil
}}
