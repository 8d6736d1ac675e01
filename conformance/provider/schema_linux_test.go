// SPDX-License-Identifier: BSD-2-Clause

//go:build amd64 || arm64

package provider

import (
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/generated/ioctls"
	"github.com/goverbs/goverbs/generated/uapi"
)

// driverModules matches the modules of pyverbs' tests that make libmlx5 send requests to its driver's own methods. Most
// tests then fail or are skipped, because the emulated kernel implements few of them.
var driverModules = regexp.MustCompile(`^test_(device|dm|flow|mlx5_(cq|devx|devx_async_events|dm_ops|flow|huge_page|pp|` +
	`query_port|uar|var))$`)

var recordedAttr = regexp.MustCompile(` ([0-9a-f]+) of ([0-9]+) bytes, flags ([0-9a-f]+)(?:, [^;]*)?;`)

// methodRequest is a request as a record has it.
type methodRequest struct {
	header uapi.IBUverbsIoctlHdr
	attrs  []uapi.IBUverbsAttr
}

// check returns the error of ioctls.Check for the request with other attributes.
func (r *methodRequest) check(methods []ioctls.Method, attrs []uapi.IBUverbsAttr) error {
	h := r.header
	h.NumAttrs = uint16(len(attrs))
	h.Length = uint16(unsafe.Sizeof(h) + uintptr(len(attrs))*unsafe.Sizeof(uapi.IBUverbsAttr{}))
	return ioctls.Check(methods, &h, attrs)
}

// methodRequests returns the different requests to methods in a record, by their text.
func methodRequests(t *testing.T, record string) map[string]*methodRequest {
	t.Helper()
	hex := func(s string) uint16 {
		n, err := strconv.ParseUint(s, 16, 16)
		require.NoError(t, err)
		return uint16(n)
	}
	found := map[string]*methodRequest{}
	for _, line := range regexp.MustCompile(`(?m)^object ([0-9a-f]+), method ([0-9a-f]+):.*$`).
		FindAllStringSubmatch(record, -1) {
		r := &methodRequest{header: uapi.IBUverbsIoctlHdr{ObjectID: hex(line[1]), MethodID: hex(line[2])}}
		for _, a := range recordedAttr.FindAllStringSubmatch(line[0], -1) {
			size, err := strconv.ParseUint(a[2], 10, 16)
			require.NoError(t, err)
			r.attrs = append(r.attrs, uapi.IBUverbsAttr{AttrID: hex(a[1]), Len: uint16(size),
				Flags: uapi.UVERBSAttrFlags(hex(a[3]))})
		}
		found[line[0]] = r
	}
	return found
}

// calledMethods returns the record of a C program that calls functions of mlx5dv.h.
func calledMethods(t *testing.T, e *Emulated) string {
	t.Helper()
	program, record := filepath.Join(t.TempDir(), "methods"), filepath.Join(t.TempDir(), "record")
	require.NoError(t, e.Compile(t.Context(), program, "testdata/methods.c", e.Libverbs(),
		filepath.Join(e.libraries.dir(), "libmlx5.so.1"), "-Wl,--allow-shlib-undefined",
		"-Wl,--unresolved-symbols=ignore-in-shared-libs"))
	cmd := e.As(MLX5).Command(t.Context(), program)
	cmd.Env = append(cmd.Env, "GOVERBS_RECORD="+record)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	t.Logf("%s", out)
	return read(t, record)
}

// TestSchemaOfDriver checks generated/ioctls with the requests of libmlx5: those that rdma-core's own tests and a program
// make it send to the emulated kernel are accepted, also those to the driver's methods, and they are rejected without a
// mandatory attribute, with an attribute twice or too long, and with an unknown mandatory one.
func TestSchemaOfDriver(t *testing.T) {
	e := emulated(t)
	kernels := ioctls.Kernels()
	methods := ioctls.Methods(kernels[len(kernels)-1], uapi.RDMA_DRIVER_MLX5)
	record := filepath.Join(t.TempDir(), "record")
	runPyverbs(t, e, "schema", driverModules, "GOVERBS_RECORD="+record)
	found := methodRequests(t, read(t, record))
	maps.Copy(found, methodRequests(t, calledMethods(t, e)))
	names, wrong := map[string]int{}, 0
	for text, r := range found {
		require.NoError(t, r.check(methods, r.attrs), text)
		i := slices.IndexFunc(methods, func(m ioctls.Method) bool {
			return uint16(m.Object) == r.header.ObjectID && m.ID == r.header.MethodID
		})
		m := methods[i]
		names[m.Name]++
		for j, given := range r.attrs {
			k := slices.IndexFunc(m.Attrs, func(a ioctls.Attr) bool { return a.ID == given.AttrID })
			if k >= 0 && m.Attrs[k].Mandatory {
				wrong++
				assert.ErrorIs(t, r.check(methods, slices.Delete(slices.Clone(r.attrs), j, j+1)), syscall.EINVAL,
					"%s without %s", text, m.Attrs[k].Name)
			}
			wrong++
			assert.ErrorIs(t, r.check(methods, append(slices.Clone(r.attrs), given)), syscall.EINVAL, "%s twice", text)
			if k < 0 || m.Attrs[k].ZeroTrailing || m.Attrs[k].Max == 0xffff || m.Attrs[k].Kind > ioctls.Out {
				continue
			}
			longer := slices.Clone(r.attrs)
			longer[j].Len = m.Attrs[k].Max + 1
			wrong++
			assert.ErrorIs(t, r.check(methods, longer), syscall.EINVAL, "%s with longer %s", text, m.Attrs[k].Name)
		}
		wrong++
		unknown := uapi.IBUverbsAttr{AttrID: 0x1fff, Flags: uapi.UVERBS_ATTR_F_MANDATORY}
		assert.ErrorIs(t, r.check(methods, append(slices.Clone(r.attrs), unknown)), syscall.EPROTONOSUPPORT, text)
	}
	drivers := slices.DeleteFunc(slices.Sorted(maps.Keys(names)),
		func(name string) bool { return !strings.HasPrefix(name, "MLX5_IB_METHOD_") })
	t.Logf("%d different requests to %d methods accepted, %d of them mlx5's: %s; %d wrong requests rejected", len(found),
		len(names), len(drivers), strings.Join(drivers, " "), wrong)
	assert.GreaterOrEqual(t, len(drivers), 15)
}
