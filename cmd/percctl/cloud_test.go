package main

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"

	"cloud.google.com/go/bigtable/admin/apiv2/adminpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// TestDoctorInTheCloud answers for the services that the emulator lacks.
func TestDoctorInTheCloud(t *testing.T) {
	t.Parallel()
	single := func(transactional bool) *adminpb.AppProfile {
		return &adminpb.AppProfile{RoutingPolicy: &adminpb.AppProfile_SingleClusterRouting_{SingleClusterRouting: &adminpb.AppProfile_SingleClusterRouting{ClusterId: "c", AllowTransactionalWrites: transactional}}}
	}
	all := []string{"bigtable.tables.readRows", "bigtable.tables.sampleRowKeys", "bigtable.tables.mutateRows", "bigtable.tables.get"}
	for name, test := range map[string]struct {
		profile     *adminpb.AppProfile
		profileErr  error
		permissions []string
		refuse      bool // conditional mutations
		code        int
		want        []string
	}{
		"good":            {profile: single(true), permissions: all, want: []string{"ok  app profile", "ok  permissions"}},
		"multi-cluster":   {profile: &adminpb.AppProfile{RoutingPolicy: &adminpb.AppProfile_MultiClusterRoutingUseAny_{}}, permissions: all, code: 4, want: []string{"error: app profile: default: it routes to several clusters", "gcloud bigtable app-profiles update default --instance=inst"}},
		"no transactions": {profile: single(false), permissions: all, code: 4, want: []string{"it does not allow single-row transactions"}},
		"no profile":      {profileErr: status.Error(codes.NotFound, "x"), permissions: all, code: 4, want: []string{"there is no such app profile"}},
		"fails":           {profileErr: status.Error(codes.InvalidArgument, "x"), permissions: all, code: 1, want: []string{"failed  app profile                  invalid argument: x"}},
		"may not look":    {profileErr: status.Error(codes.PermissionDenied, "x"), permissions: all, want: []string{"skipped  app profile                  cannot be checked by this account: it lacks bigtable.appProfiles.get"}},
		"cannot write":    {profile: single(true), permissions: []string{all[0], all[1], all[3]}, code: 4, want: []string{"error: permissions: accounts: this account lacks bigtable.tables.mutateRows"}},
		"cannot describe": {profile: single(true), permissions: all[:3], want: []string{"note: permissions: accounts: this account lacks bigtable.tables.get"}},
		"refused":         {profile: single(true), permissions: all, refuse: true, code: 4, want: []string{"error: single-row transactions: the app profile: Bigtable refuses conditional mutations"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, err := newFixture(t.Context(), t, grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
				switch {
				case strings.HasSuffix(info.FullMethod, "/GetAppProfile"):
					return test.profile, test.profileErr
				case strings.HasSuffix(info.FullMethod, "/TestIamPermissions"):
					return permissionsResponse(test.permissions)
				case strings.HasSuffix(info.FullMethod, "/CheckAndMutateRow") && test.refuse && strings.Contains(infoRow(req), "doctor"):
					return nil, status.Error(codes.FailedPrecondition, "Single-row transactions are not allowed by this app profile")
				}
				return next(ctx, req)
			}))
			if err != nil {
				t.Fatal(err)
			}
			defer f.close()
			cmd := exec.Command("percctl", "doctor")
			cmd.Env = append(os.Environ(), "BIGTABLE_EMULATOR_HOST="+f.emulator.Addr(), "PERCCTL_PROJECT="+fixtureProject, "PERCCTL_INSTANCE="+fixtureInstance)
			out, _ := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != test.code {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			for _, want := range test.want {
				if !strings.Contains(string(out), want) {
					t.Errorf("%q is not in:\n%s", want, out)
				}
			}
		})
	}
}

// infoRow is the row of a request for one.
func infoRow(req any) string {
	if r, ok := req.(interface{ GetRowKey() []byte }); ok {
		return string(r.GetRowKey())
	}
	return ""
}

// permissionsResponse is the answer of IAM, whose messages the Bigtable client
// brings with it.
func permissionsResponse(has []string) (any, error) {
	typ, err := protoregistry.GlobalTypes.FindMessageByName("google.iam.v1.TestIamPermissionsResponse")
	if err != nil {
		return nil, err
	}
	m := typ.New()
	list := m.Mutable(typ.Descriptor().Fields().ByName("permissions")).List()
	for _, p := range has {
		list.Append(protoreflect.ValueOfString(p))
	}
	return m.Interface(), nil
}
