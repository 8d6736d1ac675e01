// SPDX-License-Identifier: BSD-2-Clause

package doctor

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/inventory"
	"github.com/goverbs/goverbs/rdma"
	"github.com/goverbs/goverbs/rdma/native"
	"github.com/goverbs/goverbs/rdma/soft"
)

// Here returns this host. It reads the counters twice, an interval apart.
func Here(ctx context.Context, interval time.Duration) (*Host, error) {
	h := &Host{FS: os.DirFS("/"), Interval: interval, Env: os.Getenv, Software: software,
		Library: inventory.Library(), NeedsLibrary: needsLibrary,
		Open: func(path string) error {
			f, err := os.OpenFile("/"+path, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			return f.Close()
		}}
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	for _, f := range interfaces {
		one := Interface{Name: f.Name, MTU: f.MTU, Up: f.Flags&net.FlagUp != 0}
		addresses, err := f.Addrs()
		if err != nil {
			return nil, err
		}
		for _, a := range addresses {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				one.Addresses = append(one.Addresses, p)
			}
		}
		h.Interfaces = append(h.Interfaces, one)
	}
	if len(h.all()) > 0 && interval > 0 {
		first := h.saveCounters()
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(interval):
		}
		h.Later, h.FS = h.FS, first
	}
	return h, nil
}

// needsLibrary reports whether package native lacks the driver of a kernel device.
func needsLibrary(device string) bool {
	d, err := rdma.Open(native.Prefix + device)
	if err != nil {
		return errors.Is(err, rdma.ErrNotSupported)
	}
	_ = d.Close()
	return false
}

// software reports whether name is a software device.
func software(name string) bool {
	if strings.HasPrefix(name, soft.Prefix) {
		_, _, err := soft.Named(name)
		return err == nil
	}
	fabric, err := soft.Default()
	if err != nil {
		return false
	}
	infos, err := rdma.DevicesOf(fabric)
	return err == nil && slices.ContainsFunc(infos, func(i rdma.DeviceInfo) bool { return i.Name == name })
}
