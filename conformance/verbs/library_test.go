// SPDX-License-Identifier: BSD-2-Clause

package verbs

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/project"
	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/libefa"
	"github.com/goverbs/goverbs/generated/libhns"
	"github.com/goverbs/goverbs/generated/libibverbs"
	"github.com/goverbs/goverbs/generated/libionic"
	"github.com/goverbs/goverbs/generated/libmana"
	"github.com/goverbs/goverbs/generated/libmlx4"
	"github.com/goverbs/goverbs/generated/libmlx5"
	"github.com/goverbs/goverbs/generated/librdmacm"
	"github.com/goverbs/goverbs/generated/librpma"
	"github.com/goverbs/goverbs/generated/mlx5dv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/runtime"
)

// libraries maps each library that all supported Debian releases have to its functions.
var libraries = map[*runtime.Library][]*runtime.Function{
	libibverbs.Library: libibverbs.Functions, librdmacm.Library: librdmacm.Functions,
	libmlx5.Library: libmlx5.Functions,
	libmlx4.Library: libmlx4.Functions, libefa.Library: libefa.Functions, libmana.Library: libmana.Functions,
	librpma.Library: librpma.Functions,
}

// newLibraries are libraries that some supported Debian releases lack.
var newLibraries = map[*runtime.Library][]*runtime.Function{
	libhns.Library: libhns.Functions, libionic.Library: libionic.Functions,
}

// debian maps each project to the Debian package of its library. The package's version is the project's release.
var debian = map[string]string{"rdma-core": "libibverbs1", "librpma": "librpma0"}

// needLibraries skips a test if rdma-core's libraries are not installed.
func needLibraries(t *testing.T) {
	t.Helper()
	for l := range libraries {
		if err := l.Open(); err != nil {
			if os.Getenv("CI") != "" {
				require.NoError(t, err, "make deps installs the libraries")
			}
			t.Skipf("%s is not installed (make deps installs it): %v", l.Name, err)
		}
	}
}

// TestInstalledLibrary compares the releases that introduced functions with the symbols of Debian's libraries: newer
// functions are missing and report their release, all others exist.
func TestInstalledLibrary(t *testing.T) {
	needLibraries(t)
	installed := map[string]string{}
	for of, pkg := range debian {
		out, err := exec.Command("dpkg-query", "-W", "-f", "${Version}", pkg).Output()
		if err != nil {
			t.Skip("dpkg-query does not list the installed release")
		}
		installed[of], _, _ = strings.Cut(string(out), "-")
	}
	counts := map[bool]int{}
	checked := maps.Clone(libraries)
	for l, all := range newLibraries {
		missing := project.CompareReleases(all[0].Since, installed[l.Project]) > 0
		err := l.Open()
		assert.Equal(t, missing, err != nil, "%s: %v", l.SOName, err)
		if missing {
			assert.ErrorIs(t, all[0].Available(), runtime.ErrNotSupported, l.SOName)
			counts[false] += len(all)
			continue
		}
		checked[l] = all
	}
	for l, all := range checked {
		for _, f := range all {
			err := f.Available()
			exists := f.Since == "" || project.CompareReleases(f.Since, installed[l.Project]) <= 0
			counts[exists]++
			if exists {
				assert.NoError(t, err, "%s", l.SOName)
				continue
			}
			var missing *runtime.NotSupportedError
			if assert.ErrorAs(t, err, &missing, f.Name) {
				assert.Equal(t, f.Since, missing.Since)
				assert.Contains(t, err.Error(),
					f.Name+": "+l.SOName+" does not export it ("+l.Project+" has it since "+f.Since+")")
				assert.ErrorIs(t, err, syscall.EOPNOTSUPP)
			}
		}
	}
	t.Logf("releases %v: %d exist, %d are newer", installed, counts[true], counts[false])
	if installed["rdma-core"] == "44.0" {
		assert.Greater(t, counts[false], 15)
		_, err := libibverbs.RegMREx(nil, nil)
		assert.ErrorIs(t, err, runtime.ErrNotSupported)
		assert.EqualError(t, err, "ibv_reg_mr_ex: libibverbs.so.1 does not export it (rdma-core has it since 65.0)")
	}
}

// TestNumbersAndTexts calls functions that need no device.
func TestNumbersAndTexts(t *testing.T) {
	needLibraries(t)
	mult, err := libibverbs.RateToMult(ibv.RATE_10_GBPS)
	require.NoError(t, err)
	assert.Equal(t, 4, mult)
	mult, err = libibverbs.RateToMult(ibv.RATE_MAX)
	require.NoError(t, err)
	assert.Equal(t, -1, mult, "a negative int keeps its sign")
	rate, err := libibverbs.MultToRate(4)
	require.NoError(t, err)
	assert.Equal(t, ibv.RATE_10_GBPS, rate)
	text, err := libibverbs.WCStatusStr(ibv.WC_RETRY_EXC_ERR)
	require.NoError(t, err)
	assert.Equal(t, "transport retry counter exceeded", text)
	text, err = librdmacm.EventStr(rdmacm.CM_EVENT_ESTABLISHED)
	require.NoError(t, err)
	assert.Equal(t, "RDMA_CM_EVENT_ESTABLISHED", text)
	status, err := libibverbs.IsForkInitialized()
	require.NoError(t, err)
	assert.Equal(t, ibv.FORK_DISABLED, status)

	var sizes mlx5dv.ExportSizes
	require.NoError(t, orMissing(libmlx5.GetExportSizes(&sizes)))
}

// orMissing accepts ErrNotSupported: the installed library may be older than the function.
func orMissing(err error) error {
	if errors.Is(err, runtime.ErrNotSupported) {
		return nil
	}
	return err
}

// TestWithoutDevice calls functions that fail, or find nothing, without a device, and checks for C's errno.
func TestWithoutDevice(t *testing.T) {
	needLibraries(t)
	if devices, _ := os.ReadDir("/sys/class/infiniband_verbs"); len(devices) > 0 {
		t.Skip("this machine has RDMA devices; the test is about one without")
	}
	n := int32(-1)
	list, err := libibverbs.GetDeviceList(&n)
	if err == nil {
		assert.Zero(t, n)
		assert.Zero(t, *list, "the list ends with NULL")
		assert.NoError(t, libibverbs.FreeDeviceList(list))
	} else {
		assert.ErrorIs(t, err, syscall.ENOSYS)
		assert.ErrorIs(t, err, runtime.ErrNotSupported)
		assert.Nil(t, list)
	}
	context, err := libibverbs.ImportDevice(-1)
	assert.Nil(t, context)
	var call *runtime.CallError
	require.ErrorAs(t, err, &call)
	assert.Equal(t, "ibv_import_device", call.Function)

	channel, err := librdmacm.CreateEventChannel()
	if err == nil {
		assert.NoError(t, librdmacm.DestroyEventChannel(channel))
	} else {
		require.ErrorAs(t, err, &call)
		assert.NotZero(t, call.Errno)
	}

	var res ibv.Ptr[rdmacm.AddrInfo]
	_, err = librdmacm.GetAddrInfo("no such host: it has blanks", "7471", nil, &res)
	require.ErrorAs(t, err, &call)
	assert.Equal(t, "rdma_getaddrinfo", call.Function)

	_, err = librdmacm.RSocket(-1, -1, -1)
	require.ErrorAs(t, err, &call)
	assert.Equal(t, "rsocket", call.Function)
	assert.NotZero(t, call.Errno)
}

// TestSocketCalls checks errnos of functions with an invalid socket. Functions that read or write crash; these look the
// socket up.
func TestSocketCalls(t *testing.T) {
	needLibraries(t)
	var address rdmacm.SockaddrIn
	err := librdmacm.RBind(60000, (*rdmacm.Sockaddr)(unsafe.Pointer(&address)), uint32(unsafe.Sizeof(address)))
	assert.ErrorIs(t, err, syscall.EBADF)
	assert.EqualError(t, err, "rbind: bad file descriptor")
	flags, err := librdmacm.RFcntl(60000, syscall.F_GETFL, 0)
	assert.Equal(t, -1, flags)
	assert.ErrorIs(t, err, syscall.EBADF)
}

// TestSlotsOfNewerReleases checks that slots beyond the end of an older library's object are not read. The exported
// symbols determine the library's release.
func TestSlotsOfNewerReleases(t *testing.T) {
	needLibraries(t)
	qp := &ibv.QPEx{WRFlush: 2, WRAtomicWrite: 2} // no code there
	for name, slot := range map[string]struct {
		with string
		call func() error
	}{
		"ibv_wr_flush":        {"ibv_wr_opcode_str", func() error { return libibverbs.WRFlush(qp, 1, 2, 3, 0, 0) }},
		"ibv_wr_atomic_write": {"ibv_import_dm", func() error { return libibverbs.WRAtomicWrite(qp, 1, 2, 0) }},
	} {
		if address, err := libibverbs.Library.Symbol(slot.with); err != nil || address != 0 {
			require.NoError(t, err)
			t.Logf("the installed library has %s: objects have the slot", name)
			continue
		}
		err := slot.call()
		require.ErrorIs(t, err, runtime.ErrNotSupported, name)
		assert.Contains(t, err.Error(),
			name+": objects of libibverbs.so.1 do not have the slot (rdma-core has it since ")
	}
}
