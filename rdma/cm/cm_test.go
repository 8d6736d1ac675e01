// SPDX-License-Identifier: BSD-2-Clause

package cm

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/soft"
)

func TestAddressesSurviveC(t *testing.T) {
	for _, text := range []string{"10.77.0.1:7471", "[fd77::1]:1", "0.0.0.0:0", "[::]:65535", "[fe80::1%7]:9"} {
		want := netip.MustParseAddrPort(text)
		assert.Equal(t, want, addrPort(header(sockaddr(want))))
	}
	assert.Equal(t, []byte{2, 0, 0x1d, 0x2f, 10, 77, 0, 1},
		copyBytes(address(sockaddr(netip.MustParseAddrPort("10.77.0.1:7471"))), 8),
		"C's layout on a little-endian machine")
	assert.False(t, addrPort(nil).IsValid())
	assert.False(t, addrPort(&rdmacm.Sockaddr{SAFamily: rdmacm.AF_IB}).IsValid())
}

func TestEventErrorsAreErrnos(t *testing.T) {
	for _, c := range []struct {
		event  rdmacm.CMEventType
		status int
		errno  syscall.Errno
		says   string
	}{
		{rdmacm.CM_EVENT_REJECTED, 8, syscall.ECONNREFUSED, "no listener (status 8)"},
		{rdmacm.CM_EVENT_REJECTED, 28, syscall.ECONNREFUSED, "program rejected it"},
		{rdmacm.CM_EVENT_UNREACHABLE, 1, syscall.ECONNREFUSED, "no listener (status 1)"},
		{rdmacm.CM_EVENT_UNREACHABLE, 2, syscall.ECONNREFUSED, "program rejected it"},
		{rdmacm.CM_EVENT_UNREACHABLE, -110, syscall.ETIMEDOUT, "does not answer"},
		{rdmacm.CM_EVENT_UNREACHABLE, 0, syscall.ETIMEDOUT, "does not answer"},
		{rdmacm.CM_EVENT_ADDR_ERROR, -19, syscall.ENODEV, "no RDMA device"},
		{rdmacm.CM_EVENT_DEVICE_REMOVAL, 0, syscall.ENODEV, "being removed"},
		{rdmacm.CM_EVENT_CONNECT_ERROR, -524, syscall.Errno(524), "not supported by the kernel or its driver ("},
	} {
		err := error(&EventError{Verb: "rdma_connect", Object: "ID", Event: Event{Type: c.event, Status: c.status}})
		assert.ErrorIs(t, err, c.errno)
		assert.ErrorContains(t, err, c.says)
		assert.ErrorContains(t, err, c.event.String())
		var timeout interface{ Timeout() bool }
		require.True(t, errors.As(err, &timeout))
		assert.Equal(t, c.errno == syscall.ETIMEDOUT, timeout.Timeout())
	}
}

func TestChannelInUse(t *testing.T) {
	assert.Equal(t, "ID 1 must be closed or migrated first", mustClose("ID 1", 0))
	assert.Equal(t, "ID 1 and one more ID must be closed or migrated first", mustClose("ID 1", 1))
	assert.Equal(t, "ID 1 and 2 more IDs must be closed or migrated first", mustClose("ID 1", 2))

	f, err := soft.New(soft.Options{})
	keep(t, f, err)
	ch, err := CreateEventChannelOn(f)
	keep(t, ch, err)
	id, err := ch.CreateID(rdmacm.PS_TCP)
	keep(t, id, err)
	err = ch.Close()
	assert.ErrorIs(t, err, rdma.ErrInUse)
	assert.ErrorContains(t, err, "ID must be closed or migrated first")
}
