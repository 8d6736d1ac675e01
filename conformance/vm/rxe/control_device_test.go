// SPDX-License-Identifier: BSD-2-Clause

package rxe

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/generated/ibv"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
)

const noPort = testbed.PortNum + 8

var deviceControls = []control{
	{verb: "ibv_get_device_list", what: works, call: devices(func(*testbed.Testbed, *ibv.Device) error { return nil })},
	{verb: "ibv_get_device_list", what: "no permission", why: "any user may list devices"},
	{verb: "ibv_get_device_list", what: "no RDMA in the kernel", why: "the guest's kernel has it"},
	{verb: "ibv_get_device_list", what: "no memory", why: "the library's allocation does not fail"},
	{verb: "ibv_free_device_list", what: works, call: devices(func(*testbed.Testbed, *ibv.Device) error { return nil })},
	{verb: "ibv_free_device_list", what: "any", why: "it has no result"},
	{verb: "ibv_get_device_name", what: works,
		call: devices(func(_ *testbed.Testbed, d *ibv.Device) error { _, err := verbs.GetDeviceName(d); return err })},
	{verb: "ibv_get_device_name", what: "any", why: "the name is a field of the device"},
	{verb: "ibv_get_device_guid", what: works, call: devices(func(r *testbed.Testbed, d *ibv.Device) error {
		guid, err := verbs.GetDeviceGUID(d)
		if err == nil && guid == 0 {
			return failed("no GUID")
		}
		return err
	})},
	{verb: "ibv_get_device_guid", what: "any", why: "the GUID is a field of the device"},
	{verb: "ibv_get_device_index", what: works, call: devices(func(r *testbed.Testbed, d *ibv.Device) error {
		index, err := verbs.GetDeviceIndex(d)
		if err == nil && index < 0 {
			return failed("no index")
		}
		return err
	})},
	{verb: "ibv_get_device_index", what: "kernel without indices", why: "these kernels have them"},
	{verb: "ibv_open_device", what: works, call: devices(func(r *testbed.Testbed, d *ibv.Device) error {
		return created(r, verbs.CloseDevice)(verbs.OpenDevice(d))
	})},
	{verb: "ibv_open_device", what: "device removed since it was listed", call: func(r *testbed.Testbed) error {
		spare := r.Spare()
		var err error
		devices(func(_ *testbed.Testbed, d *ibv.Device) error {
			name, _ := verbs.GetDeviceName(d)
			if name == spare.Name {
				r.Check(spare.Remove())
				err = created(r, verbs.CloseDevice)(verbs.OpenDevice(d))
			}
			return nil
		})(r)
		return err
	}},
	{verb: "ibv_close_device", what: works, call: devices(func(r *testbed.Testbed, d *ibv.Device) error {
		context, err := verbs.OpenDevice(d)
		r.Check(err)
		return verbs.CloseDevice(context)
	})},
	// the objects remain until the process exits
	{verb: "ibv_close_device", what: "objects left", call: func(*testbed.Testbed) error {
		return alone("^TestCloseWithObjects$")
	}},

	{verb: "ibv_query_device", what: works,
		call: func(r *testbed.Testbed) error { return verbs.QueryDevice(r.Context, new(ibv.DeviceAttr)) }},
	{verb: "ibv_query_device", what: "a vendor", call: func(r *testbed.Testbed) error {
		attr := new(ibv.DeviceAttr)
		r.Check(verbs.QueryDevice(r.Context, attr))
		return failed(fmt.Sprintf("%#x", attr.VendorID))
	}},
	{verb: "ibv_query_device", what: "any", why: "the page documents none, and it has no argument that can be wrong"},
	{verb: "ibv_query_device_ex", what: works,
		call: func(r *testbed.Testbed) error { return verbs.QueryDeviceEx(r.Context, nil, new(ibv.DeviceAttrEx)) }},
	{verb: "ibv_query_device_ex", what: "unknown bit in comp_mask", call: func(r *testbed.Testbed) error {
		return verbs.QueryDeviceEx(r.Context, &ibv.QueryDeviceExInput{CompMask: 1}, new(ibv.DeviceAttrEx))
	}},
	{verb: "ibv_query_port", what: works,
		call: func(r *testbed.Testbed) error { return verbs.QueryPort(r.Context, testbed.PortNum, new(ibv.PortAttr)) }},
	{verb: "ibv_query_port", what: "no such port",
		call: func(r *testbed.Testbed) error { return verbs.QueryPort(r.Context, noPort, new(ibv.PortAttr)) }},
	{verb: "ibv_query_port", what: "port 0",
		call: func(r *testbed.Testbed) error { return verbs.QueryPort(r.Context, 0, new(ibv.PortAttr)) }},
	{verb: "ibv_query_gid", what: works, call: func(r *testbed.Testbed) error {
		gid := new(ibv.GID)
		err := verbs.QueryGID(r.Context, testbed.PortNum, int(r.Index), gid)
		if err == nil && *gid != r.GID {
			return failed("another GID")
		}
		return err
	}},
	{verb: "ibv_query_gid", what: "beyond the table", call: func(r *testbed.Testbed) error {
		return verbs.QueryGID(r.Context, testbed.PortNum, int(r.Port.GIDTblLen), new(ibv.GID))
	}},
	{verb: "ibv_query_gid", what: "no such port",
		call: func(r *testbed.Testbed) error { return verbs.QueryGID(r.Context, noPort, 0, new(ibv.GID)) }},
	{verb: "ibv_query_gid_ex", what: works, call: gidEx(testbed.PortNum, func(r *testbed.Testbed) uint32 { return uint32(r.Index) },
		0)},
	{verb: "ibv_query_gid_ex", what: "empty entry",
		call: gidEx(testbed.PortNum, func(r *testbed.Testbed) uint32 { return uint32(r.Port.GIDTblLen) - 1 }, 0)},
	{verb: "ibv_query_gid_ex", what: "beyond the table",
		call: gidEx(testbed.PortNum, func(r *testbed.Testbed) uint32 { return uint32(r.Port.GIDTblLen) }, 0)},
	{verb: "ibv_query_gid_ex", what: "no such port", call: gidEx(noPort, func(r *testbed.Testbed) uint32 { return 0 }, 0)},
	{verb: "ibv_query_gid_ex", what: "flags, which must be 0",
		call: gidEx(testbed.PortNum, func(r *testbed.Testbed) uint32 { return uint32(r.Index) }, 1)},
	{verb: "ibv_query_gid_table", what: works, call: gidTable(64, 0)},
	{verb: "ibv_query_gid_table", what: "room for no entry", call: gidTable(0, 0)},
	{verb: "ibv_query_gid_table", what: "room for too few entries", call: gidTable(1, 0)},
	{verb: "ibv_query_gid_table", what: "flags, which must be 0", call: gidTable(64, 1)},
	{verb: "ibv_query_pkey", what: works,
		call: func(r *testbed.Testbed) error { return verbs.QueryPKey(r.Context, testbed.PortNum, 0, new(ibv.BE16)) }},
	{verb: "ibv_query_pkey", what: "beyond the table", call: func(r *testbed.Testbed) error {
		return verbs.QueryPKey(r.Context, testbed.PortNum, int(r.Port.PKeyTblLen), new(ibv.BE16))
	}},
	{verb: "ibv_query_pkey", what: "no such port",
		call: func(r *testbed.Testbed) error { return verbs.QueryPKey(r.Context, noPort, 0, new(ibv.BE16)) }},
	{verb: "ibv_get_pkey_index", what: works, call: func(r *testbed.Testbed) error {
		_, err := verbs.GetPKeyIndex(r.Context, testbed.PortNum, ibv.ToBE16(0xffff))
		return err
	}},
	{verb: "ibv_get_pkey_index", what: "no such key", call: func(r *testbed.Testbed) error {
		_, err := verbs.GetPKeyIndex(r.Context, testbed.PortNum, ibv.ToBE16(0x1234))
		return err
	}},
	{verb: "ibv_fork_init", what: works, call: func(r *testbed.Testbed) error { // must be called first in a process
		return alone("^TestForkInit$")
	}},
	{verb: "ibv_fork_init", what: "memory was registered before", call: func(r *testbed.Testbed) error {
		r.Buffer(64, local)
		return served(r).ForkInit()
	}},
	{verb: "ibv_is_fork_initialized", what: works, call: func(r *testbed.Testbed) error {
		fork, err := served(r).IsForkInitialized()
		if err == nil && fork != ibv.FORK_UNNEEDED {
			return failed(fork.String())
		}
		return err
	}},
	{verb: "ibv_is_fork_initialized", what: "any", why: "it returns a state"},
}

// served returns the functions that take no object, for the testbed's backend.
func served(r *testbed.Testbed) verbs.From {
	backend, err := testbed.Backend()
	r.Check(err)
	return verbs.From{Backend: backend}
}

// devices calls f with each device of the list.
func devices(f func(*testbed.Testbed, *ibv.Device) error) func(*testbed.Testbed) error {
	return func(r *testbed.Testbed) error {
		var n int32
		list, err := served(r).GetDeviceList(&n)
		if err != nil {
			return err
		}
		for _, device := range unsafe.Slice(list, n) {
			if err := f(r, device.Deref()); err != nil {
				return err
			}
		}
		if n == 0 {
			return failed("no devices")
		}
		return verbs.FreeDeviceList(list)
	}
}

func gidEx(port uint32, index func(*testbed.Testbed) uint32, flags uint32) func(*testbed.Testbed) error {
	return func(r *testbed.Testbed) error {
		return verbs.QueryGIDEx(r.Context, port, index(r), new(ibv.GIDEntry), flags)
	}
}

func gidTable(capacity uint64, flags uint32) func(*testbed.Testbed) error {
	return func(r *testbed.Testbed) error {
		n, err := verbs.QueryGIDTable(r.Context, &testbed.Records[ibv.GIDEntry](r, 64)[0], capacity, flags)
		if err == nil && n < 2 {
			return failed("fewer than two GIDs")
		}
		return err
	}
}

// alone runs a test of this program in a separate process.
func alone(test string) error {
	again := exec.Command(os.Args[0], "-test.run="+test)
	again.Env = append(os.Environ(), "GOVERBS_ALONE=1")
	return again.Run()
}

// isAlone skips a test that runs outside a process started by alone.
func isAlone(t *testing.T) {
	testbed.Kernel(t)
	if os.Getenv("GOVERBS_ALONE") == "" {
		t.Skip("runs in a separate process, which TestControl starts")
	}
}

// TestForkInit runs alone in a process that TestControl starts.
func TestForkInit(t *testing.T) {
	isAlone(t)
	backend, err := testbed.Backend()
	require.NoError(t, err)
	require.NoError(t, verbs.From{Backend: backend}.ForkInit())
}

// TestCloseWithObjects checks that a device can be closed while its objects exist. They keep the kernel's context until
// the process exits, so the test exits before leaks are counted.
func TestCloseWithObjects(t *testing.T) {
	isAlone(t)
	context := testbed.OpenDevice(t)
	pd, err := verbs.AllocPD(context)
	require.NoError(t, err)
	memory := testbed.Open(t).Memory(4096)
	_, err = verbs.RegMR(pd, address(&memory[0]), 4096, local)
	require.NoError(t, err)
	channel, err := verbs.CreateCompChannel(context)
	require.NoError(t, err)
	cq, err := verbs.CreateCQ(context, 16, 0, channel, 0)
	require.NoError(t, err)
	_, err = verbs.CreateQP(pd, &ibv.QPInitAttr{QPType: ibv.QPT_RC, SendCQ: ibv.PtrTo(cq), RecvCQ: ibv.PtrTo(cq),
		Cap: testbed.Caps})
	require.NoError(t, err)
	require.NoError(t, verbs.CloseDevice(context))
	os.Exit(0)
}
