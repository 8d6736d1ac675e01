// SPDX-License-Identifier: BSD-2-Clause

package rxe

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/results"
	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/conformance/vm/wire"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

var (
	creatable = []ibv.QPType{ibv.QPT_RC, ibv.QPT_UC, ibv.QPT_UD}
	others    = []ibv.QPType{ibv.QPT_RAW_PACKET, ibv.QPT_XRC_SEND, ibv.QPT_XRC_RECV, ibv.QPT_DRIVER}
	opcodes   = []ibv.WROpcode{
		ibv.WR_RDMA_WRITE, ibv.WR_RDMA_WRITE_WITH_IMM, ibv.WR_SEND, ibv.WR_SEND_WITH_IMM, ibv.WR_RDMA_READ,
		ibv.WR_ATOMIC_CMP_AND_SWP,
		ibv.WR_ATOMIC_FETCH_AND_ADD, ibv.WR_LOCAL_INV, ibv.WR_BIND_MW, ibv.WR_SEND_WITH_INV, ibv.WR_TSO, ibv.WR_DRIVER1,
		ibv.WR_FLUSH, ibv.WR_ATOMIC_WRITE,
		16, 255, // undefined opcodes
	}
	flags = []ibv.SendFlags{
		0, ibv.SEND_SIGNALED, ibv.SEND_SIGNALED | ibv.SEND_INLINE, ibv.SEND_SIGNALED | ibv.SEND_FENCE,
		ibv.SEND_SIGNALED | ibv.SEND_SOLICITED, ibv.SEND_SIGNALED | ibv.SEND_IP_CSUM,
	}
)

// ofDevice returns the types that the guest's device can create: RC is the only one of Soft-iWARP.
func ofDevice(all []ibv.QPType) []ibv.QPType {
	if testbed.IWARP() {
		return []ibv.QPType{ibv.QPT_RC}
	}
	return all
}

// check compares a measured table with the recorded one and writes it for the host. On the software device and without
// rdma-core, each difference needs a reason. The software device is compared with every kernel.
func check(t *testing.T, table string, now results.Table) {
	t.Helper()
	if testbed.IWARP() {
		table = "siw-" + table
	}
	name := table + "-" + testbed.Kernel(t) + ".csv"
	if out := os.Getenv(wire.EnvOut); out != "" {
		require.NoError(t, os.WriteFile(filepath.Join(out, name), now.Encode(), 0o644))
	}
	var wrong []string
	var err error
	switch {
	case testbed.Kernel(t) == testbed.Soft:
		wrong, err = results.Unexplained(table, now)
	case testbed.Native() && !testbed.IWARP():
		wrong, err = results.UnexplainedNative(table, testbed.Kernel(t), now)
	}
	require.NoError(t, err)
	for _, desc := range wrong {
		t.Error(desc)
	}
	if testbed.Kernel(t) == testbed.Soft || testbed.Native() && !testbed.IWARP() {
		return
	}
	if os.Getenv("GOVERBS_MEASURE") != "" {
		return
	}
	recorded, ok, err := results.Read(name, now.Keys)
	require.NoError(t, err)
	require.True(t, ok, "%s was never recorded: run make measure", name)
	for _, difference := range results.Differences(recorded, now) {
		t.Errorf("%s: %s", name, difference)
	}
}

// TestSource reports the versions of the running kernel and the library.
func TestSource(t *testing.T) {
	kernel := testbed.Kernel(t)
	if kernel == testbed.Soft {
		t.Skip("the software device has no kernel and no library")
	}
	text, err := os.ReadFile("/proc/version")
	require.NoError(t, err)
	release := release.FindSubmatch(text)
	require.NotNil(t, release, "%s", text)
	library, _, _ := strings.Cut(os.Getenv(wire.EnvLibrary), "-")
	require.NotEmpty(t, library)
	assert.True(t, strings.HasPrefix(string(release[1])+".", kernel+"."), "%s runs for kernel %s", release[1], kernel)
	if os.Getenv("GOVERBS_MEASURE") != "" {
		device, file := "Soft-RoCE", "source-"
		if testbed.IWARP() {
			device, file = "Soft-iWARP", "siw-source-"
		}
		source := fmt.Sprintf("%s, Linux %s, rdma-core %s\n", device, release[1], library)
		require.NoError(t, os.WriteFile(filepath.Join(os.Getenv(wire.EnvOut), file+kernel+".txt"), []byte(source), 0o644))
	}
}

// release matches Debian's version of a kernel in /proc/version.
var release = regexp.MustCompile(`Debian (\d+(?:\.\d+)+)-\d+[^)]* \(\d{4}`)

// TestCreateQP measures which types of queue pairs can be created, and the errors for the others.
func TestCreateQP(t *testing.T) {
	r := testbed.Open(t)
	cq := r.CQ(16)
	table := results.Table{Columns: []string{"qp_type", "create"}, Keys: 1}
	for _, kind := range append(append([]ibv.QPType{}, creatable...), others...) {
		qp, err := verbs.CreateQP(r.PD, &ibv.QPInitAttr{QPType: kind, SendCQ: ibv.PtrTo(cq), RecvCQ: ibv.PtrTo(cq),
			Cap: testbed.Caps})
		if err == nil {
			require.NoError(t, verbs.DestroyQP(qp))
		}
		table.Rows = append(table.Rows, []string{trim(kind.String()), errnoName(err)})
	}
	check(t, "create_qp", table)
}

// TestPostSend measures every opcode with every queue pair type and flag, each on a separate pair.
func TestPostSend(t *testing.T) {
	r := testbed.Open(t)
	b := newBuffers(r)
	table := results.Table{
		Columns: []string{"qp_type", "opcode", "flags", "post", "bad_wr", "wc_status", "wc_opcode", "qp_state",
			"recv_status", "recv_opcode", "data"}, Keys: 3,
	}
	types, opcodes := ofDevice(creatable), opcodes
	if testbed.IWARP() { // for later ones, libsiw reads what lies behind its table: the result depends on its build
		opcodes = opcodes[:slices.Index(opcodes, ibv.WR_FLUSH)]
	}
	for _, kind := range types {
		for _, opcode := range opcodes {
			for _, flag := range flags {
				key := []string{trim(kind.String()), opcodeName(opcode), flagNames(flag)}
				t.Run(key[0]+"/"+key[1]+"/"+key[2], func(t *testing.T) {
					s := newScene(r.For(t), b, kind, opcode,
						func(send, recv *ibv.CQ) *ibv.QP { return r.For(t).QP(kind, send, recv) })
					table.Rows = append(table.Rows, append(key, s.post(t, flag)...))
				})
			}
		}
	}
	assert.Len(t, table.Rows, len(types)*len(opcodes)*len(flags))
	check(t, "post_send", table)
}

// post posts the scene's opcode with ibv_post_send and returns the columns from post on.
func (s *scene) post(t *testing.T, flag ibv.SendFlags) []string {
	t.Helper()
	l := s.Sends(1)
	wr := &l.WRs[0]
	wr.Opcode, wr.SendFlags = s.opcode, flag
	l.SGEs[0] = s.local.SGE(0, s.length())
	atomic := s.opcode == ibv.WR_ATOMIC_CMP_AND_SWP || s.opcode == ibv.WR_ATOMIC_FETCH_AND_ADD
	switch {
	case s.kind == ibv.QPT_UD: // a union that also has the members for other types
		*wr.WR.UD() = ibv.SendUD{AH: ibv.PtrTo(s.ah), RemoteQPN: s.p.B.QPNum, RemoteQKey: testbed.QKey}
	case atomic:
		*wr.WR.Atomic() = ibv.SendAtomic{RemoteAddr: s.remote.Address(0), RKey: s.remote.MR.RKey, CompareAdd: 1,
			Swap: swapped}
		if s.opcode == ibv.WR_ATOMIC_CMP_AND_SWP {
			wr.WR.Atomic().CompareAdd = before
		}
	default:
		*wr.WR.RDMA() = ibv.SendRDMA{RemoteAddr: s.remote.Address(0), RKey: s.remote.MR.RKey}
	}
	switch s.opcode {
	case ibv.WR_SEND_WITH_IMM, ibv.WR_RDMA_WRITE_WITH_IMM:
		*wr.ImmData() = ibv.ToBE32(0x01020304)
	case ibv.WR_SEND_WITH_INV, ibv.WR_LOCAL_INV:
		*wr.InvalidateRKey() = s.key
		if testbed.IWARP() { // libsiw invalidates this key: TestInvalidatedOnIWARP
			wr.WR.RDMA().RKey = s.key
		}
	case ibv.WR_BIND_MW:
		testbed.Bind(wr, s.window, s.local)
		wr.NumSGE = 0
	case ibv.WR_TSO:
		header := s.Memory(64)
		*wr.TSO() = ibv.SendTSO{Hdr: address(&header[0]), HdrSz: 32, MSS: 256}
	}
	if s.opcode == ibv.WR_LOCAL_INV {
		wr.NumSGE = 0
	}
	bad, err := l.Post(s.p.A)
	place := "none"
	if bad >= 0 {
		place = strconv.Itoa(bad)
	}
	return append([]string{errnoName(err), place}, s.outcome(t, err, flag)...)
}
