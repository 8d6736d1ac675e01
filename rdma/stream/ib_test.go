// SPDX-License-Identifier: BSD-2-Clause

package stream

import (
	"net/netip"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/goverbs/goverbs/generated/ibv"
	"github.com/goverbs/goverbs/generated/rdmacm"
	"github.com/goverbs/goverbs/rdma/cm"
	"github.com/goverbs/goverbs/rdma/soft"
)

// TestSoftHasNoIB: the software devices are RoCE devices and reject AF_IB addresses.
func TestSoftHasNoIB(t *testing.T) {
	f := newFabric(t, soft.Options{})
	at := func(ip string) cm.IBAddr {
		var g ibv.GID
		*g.Raw() = netip.MustParseAddr(ip).As16()
		return cm.NewIBAddr(g, rdmacm.PS_TCP, 7471)
	}
	own, peer := at("fe80::1"), at("fe80::2")
	c := Config{Backend: f}
	_, err := listening(c).ListenIB(own)
	assert.ErrorIs(t, err, syscall.ENODEV)
	assert.ErrorContains(t, err, "listen rdma ib[fe80::1]:0x1061d2f pkey 0xffff: ")
	_, err = dialer(c).DialIB(soon(t), peer)
	assert.ErrorIs(t, err, syscall.ENODEV)
	assert.ErrorContains(t, err, "dial rdma ib[fe80::2]:0x1061d2f pkey 0xffff: ")
	_, err = dialer(Config{Buffer: 1}).DialIB(soon(t), peer)
	assert.ErrorContains(t, err, "a buffer of 1 bytes")
	_, err = listening(Config{Buffer: 1}).ListenIB(own)
	assert.ErrorContains(t, err, "a buffer of 1 bytes")
}
