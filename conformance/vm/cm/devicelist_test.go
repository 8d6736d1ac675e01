// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"os"
	"os/exec"
	goruntime "runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/conformance/vm/testbed"
	"github.com/goverbs/goverbs/conformance/vm/wire"
	verbs "github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/rdma/cm"
)

const (
	// envMainThread makes a process read the device list on its main thread, before anything else.
	envMainThread = "GOVERBS_CM_MAIN_THREAD"
	// oneArena makes glibc allocate all memory from a single arena.
	oneArena = "MALLOC_ARENA_MAX=1"
)

func init() {
	if os.Getenv(envMainThread) != "" {
		goruntime.LockOSThread() // TestMain continues on this thread
	}
}

// deviceAddresses returns the addresses of libibverbs' devices by name.
func deviceAddresses() (map[string]uintptr, error) {
	n := new(int32)
	list, err := verbs.GetDeviceList(n)
	if err != nil {
		return nil, err
	}
	defer verbs.FreeDeviceList(list)
	all := map[string]uintptr{}
	for _, device := range unsafe.Slice(list, *n) {
		name, err := verbs.GetDeviceName(device.Deref())
		if err != nil {
			return nil, err
		}
		all[name] = uintptr(device)
	}
	return all, nil
}

// TestDeviceListOfLibrdmacm demonstrates a defect that the documentation of GetDevices describes. librdmacm 44.0
// compares device addresses by the low 32 bits of their difference. If a removed device has a higher address than
// another one but sorts below it, the other device is dropped too, and librdmacm hangs. Newer versions, and 44.0 with a
// single arena, do not have this problem.
func TestDeviceListOfLibrdmacm(t *testing.T) {
	inGuest(t, "tests librdmacm")
	if testbed.Native() {
		t.Skip("package native has no librdmacm")
	}
	if os.Getenv(envAlone) == t.Name() {
		removeListedDevice(t)
		return
	}
	run := func(env ...string) (wrong bool) {
		self, err := os.Executable()
		require.NoError(t, err)
		child := exec.CommandContext(withTimeout(t), self, "-test.v", "-test.run=^"+t.Name()+"$")
		child.Env = append(os.Environ(), append(env, envAlone+"="+t.Name(), envMainThread+"=1")...)
		out, err := child.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "--- PASS: "+t.Name())
		return strings.Contains(string(out), wrongOrder)
	}
	for range 3 {
		require.False(t, run(oneArena))
	}
	tries := 1
	for ; !run(); tries++ { // addresses are random
		require.Less(t, tries, 60)
	}
	t.Logf("the order of addresses was wrong in attempt %d", tries)
}

const wrongOrder = "the removed device is above the other one and sorts below it"

func removeListedDevice(t *testing.T) {
	spare := testbed.Open(t).Spare()
	at, err := deviceAddresses()
	require.NoError(t, err)
	require.Len(t, at, 2)
	localAddr, remoteAddr := at[os.Getenv(wire.EnvDevice)], at[spare.Name]
	wrong := remoteAddr > localAddr && int32(remoteAddr-localAddr) < 0
	t.Logf("%#x %#x", localAddr, remoteAddr)
	if wrong {
		t.Log(wrongOrder)
	}
	devices := func() int {
		list, err := cm.GetDevices()
		require.NoError(t, err)
		defer func() { assert.NoError(t, list.Close()) }()
		return len(list.Devices)
	}
	require.Equal(t, 2, devices())
	removed := make(chan error, 1)
	go func() { removed <- spare.Remove() }()
	require.Eventually(t, func() bool {
		at, err := deviceAddresses()
		return err == nil && len(at) == 1
	}, 10*time.Second, 5*time.Millisecond)
	left := devices()
	require.NoError(t, <-removed, "librdmacm has closed it")
	if !wrong || testbed.Kernel(t) != "6.1" { // the guest with librdmacm 44.0
		require.Equal(t, 1, left)
		require.Equal(t, 1, devices())
		return
	}
	require.Equal(t, 0, left)
	hangs := make(chan error)
	go func() {
		_, err := cm.CreateEventChannel()
		hangs <- err
	}()
	select {
	case err := <-hangs:
		t.Errorf("it does not hang: %v", err)
	case <-time.After(time.Second):
	}
}
