// SPDX-License-Identifier: BSD-2-Clause

package ioctls

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ioctls"
	"github.com/goverbs/goverbs/generated/uapi"
)

// request returns a valid request with the mandatory attributes of a method.
func request(m ioctls.Method) (*uapi.IBUverbsIoctlHdr, []uapi.IBUverbsAttr) {
	var attrs []uapi.IBUverbsAttr
	for _, a := range m.Attrs {
		if !a.Mandatory {
			continue
		}
		given := uapi.IBUverbsAttr{AttrID: a.ID, Len: a.Min}
		switch a.Kind {
		case ioctls.Enum:
			given.Len = a.Values[0].Min
		case ioctls.Handles:
			given.Len = 4 * a.Min
		}
		attrs = append(attrs, given)
	}
	return header(m, attrs), attrs
}

func header(m ioctls.Method, attrs []uapi.IBUverbsAttr) *uapi.IBUverbsIoctlHdr {
	return &uapi.IBUverbsIoctlHdr{ObjectID: uint16(m.Object), MethodID: m.ID, NumAttrs: uint16(len(attrs)),
		Length: uint16(24 + 16*len(attrs))}
}

// TestCheck checks that requests for each method are accepted with all mandatory attributes, and rejected without one,
// with one twice, and with one of another length.
func TestCheck(t *testing.T) {
	checked := 0
	for _, kernel := range ioctls.Kernels() {
		for _, driver := range []uapi.RDMADriverID{uapi.RDMA_DRIVER_UNKNOWN, uapi.RDMA_DRIVER_MLX5, uapi.RDMA_DRIVER_BNXT_RE,
			uapi.RDMA_DRIVER_EFA} {
			methods := ioctls.Methods(kernel, driver)
			for _, m := range methods {
				h, attrs := request(m)
				require.NoError(t, ioctls.Check(methods, h, attrs), m.Name)
				for i := range attrs {
					wrong := func(name string, attrs ...uapi.IBUverbsAttr) {
						checked++
						assert.ErrorIs(t, ioctls.Check(methods, header(m, attrs), attrs), syscall.EINVAL, "%s, attribute %d %s",
							m.Name, attrs[min(i, len(attrs)-1)].AttrID, name)
					}
					if len(attrs) > 1 {
						wrong("missing", append(append([]uapi.IBUverbsAttr{}, attrs[:i]...), attrs[i+1:]...)...)
					}
					wrong("twice", append(append([]uapi.IBUverbsAttr{}, attrs...), attrs[i])...)
					if attrs[i].Len == 0 {
						continue
					}
					shorter := append([]uapi.IBUverbsAttr{}, attrs...)
					shorter[i].Len--
					wrong("too short", shorter...)
				}
			}
		}
	}
	t.Log(checked, "wrong requests")
	assert.Greater(t, checked, 1000)
}

// TestCheckRequest checks the errnos for requests that are wrong in other ways. conformance/vm tests them in guests.
func TestCheckRequest(t *testing.T) {
	methods := ioctls.Methods("7", uapi.RDMA_DRIVER_MLX5)
	require.NotEmpty(t, methods)
	var m ioctls.Method
	for _, other := range methods {
		if other.Name == "UVERBS_METHOD_QUERY_PORT" {
			m = other
		}
	}
	for name, c := range map[string]struct {
		change func(*uapi.IBUverbsIoctlHdr, []uapi.IBUverbsAttr)
		want   error
	}{
		"right":      {func(h *uapi.IBUverbsIoctlHdr, a []uapi.IBUverbsAttr) {}, nil},
		"length":     {func(h *uapi.IBUverbsIoctlHdr, a []uapi.IBUverbsAttr) { h.Length++ }, syscall.EINVAL},
		"attributes": {func(h *uapi.IBUverbsIoctlHdr, a []uapi.IBUverbsAttr) { h.NumAttrs-- }, syscall.EINVAL},
		"reserved":   {func(h *uapi.IBUverbsIoctlHdr, a []uapi.IBUverbsAttr) { h.Reserved2 = 1 }, syscall.EPROTONOSUPPORT},
		"method":     {func(h *uapi.IBUverbsIoctlHdr, a []uapi.IBUverbsAttr) { h.MethodID = 99 }, syscall.EPROTONOSUPPORT},
		"object":     {func(h *uapi.IBUverbsIoctlHdr, a []uapi.IBUverbsAttr) { h.ObjectID = 99 }, syscall.EPROTONOSUPPORT},
		"bits": {func(h *uapi.IBUverbsIoctlHdr, a []uapi.IBUverbsAttr) { *a[0].AttrData.Reserved() = 1 << 8 },
			syscall.EINVAL},
		"longer":          {func(h *uapi.IBUverbsIoctlHdr, a []uapi.IBUverbsAttr) { a[0].Len = 16 }, syscall.EINVAL},
		"longer response": {func(h *uapi.IBUverbsIoctlHdr, a []uapi.IBUverbsAttr) { a[1].Len = 64 }, nil},
	} {
		h, attrs := request(m)
		c.change(h, attrs)
		assert.ErrorIs(t, ioctls.Check(methods, h, attrs), c.want, name)
	}
	unknown := uapi.IBUverbsAttr{AttrID: 0xfff}
	assert.Zero(t, m.CheckAttr(&unknown))
	unknown.Flags = uapi.UVERBS_ATTR_F_MANDATORY
	assert.Equal(t, syscall.EPROTONOSUPPORT, m.CheckAttr(&unknown))
}
