// SPDX-License-Identifier: BSD-2-Clause

package provider

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
)

// Adapter is a kind of emulated adapter.
type Adapter struct {
	Name   string // name of the driver; the provider is lib<Name>
	Device string
	files  map[string]string // additional sysfs files
}

// Device and Address are the name of the emulated mlx5 device and the address of its RoCE v2 GID.
const (
	Device  = "mlx5_0"
	Address = "192.0.2.1"
)

// The emulated adapters.
var (
	MLX5 = Adapter{"mlx5", Device, map[string]string{
		"class/infiniband/DEVICE/fw_ver":                    "16.35.1",
		"class/infiniband/DEVICE/device/modalias":           "pci:v000015B3d00001017sv000015B3sd00000001bc02sc00i00",
		"class/infiniband/DEVICE/ports/1/gids/1":            "0000:0000:0000:0000:0000:ffff:c000:0201",
		"class/infiniband/DEVICE/ports/1/gid_attrs/types/0": "IB/RoCE v1",
		"class/infiniband/DEVICE/ports/1/gid_attrs/types/1": "RoCE v2",
	}}
	EFA = Adapter{"efa", "efa_0", map[string]string{
		"class/infiniband/DEVICE/fw_ver":                    "0.0.0.0",
		"class/infiniband/DEVICE/device/modalias":           "pci:v00001D0Fd0000EFA2sv00001D0Fsd0000EFA2bc02sc00i00",
		"class/infiniband/DEVICE/ports/1/gid_attrs/types/0": "IB/RoCE v1",
	}}
	MLX4  = roce("mlx4", "4", "pci:v000015B3d00001007sv000015B3sd00000001bc02sc00i00")
	ERDMA = roce("erdma", "1", "pci:v00001DEDd0000107Fsv00001DEDsd0000107Fbc02sc00i00")
	MANA  = roce("mana", "1", "pci:v00001414d000000BAsv00001414sd000000BAbc02sc00i00")
	IRDMA = roce("irdma", "5", "pci:v00008086d00001592sv00008086sd00000001bc02sc00i00")
	BNXT  = roce("bnxt_re", "1", "pci:v000014E4d00001750sv000014E4sd00000001bc02sc00i00")
	HNS   = roce("hns", "1", "pci:v000019E5d0000A222sv000019E5sd00000001bc02sc00i00")

	adapters = []Adapter{MLX5, EFA, MLX4, ERDMA, MANA, IRDMA, BNXT, HNS}
)

// address returns the address of the RoCE v2 GID.
func (a *Adapter) address() string {
	if a.Name == MLX4.Name {
		return "fe80::267:6fff:fe76:6572" // libmlx4 resolves only link-local addresses
	}
	return Address
}

func roce(name, abi, modalias string) Adapter {
	return Adapter{name, name + "_0", map[string]string{
		"class/infiniband_verbs/uverbs0/abi_version":        abi,
		"class/infiniband/DEVICE/fw_ver":                    "1.0.0",
		"class/infiniband/DEVICE/device/modalias":           modalias,
		"class/infiniband/DEVICE/ports/1/gids/1":            "0000:0000:0000:0000:0000:ffff:c000:0201",
		"class/infiniband/DEVICE/ports/1/gid_attrs/types/0": "IB/RoCE v1",
		"class/infiniband/DEVICE/ports/1/gid_attrs/types/1": "RoCE v2",
	}}
}

// sysfs holds the files below SYSFS_PATH that libibverbs reads, and a directory that must exist.
var sysfs = map[string]string{
	"drivers/":                                   "",
	"class/infiniband_verbs/abi_version":         "6",
	"class/infiniband_verbs/uverbs0/abi_version": "1",
	"class/misc/rdma_cm/abi_version":             "4",
	"class/infiniband_verbs/uverbs0/dev":         "231:192",
	"class/infiniband_verbs/uverbs0/ibdev":       "DEVICE",
	"class/infiniband/DEVICE/node_type":          "1: CA",
	"class/infiniband/DEVICE/node_guid":          "0267:6f76:6572:6273",
	"class/infiniband/DEVICE/sys_image_guid":     "0267:6f76:6572:6273",
	"class/infiniband/DEVICE/ports/1/pkeys/0":    "0xffff",
	"class/infiniband/DEVICE/ports/1/gids/0":     "fe80:0000:0000:0000:0267:6fff:fe76:6572",
}

// writeSysfs writes a directory for SYSFS_PATH.
func (a *Adapter) writeSysfs(dir string) error {
	files := maps.Clone(sysfs)
	maps.Copy(files, a.files)
	for name, text := range files {
		path := filepath.Join(dir, strings.Replace(name, "DEVICE", a.Device, 1))
		text = strings.Replace(text, "DEVICE", a.Device, 1)
		if strings.HasSuffix(name, "/") {
			if err := os.MkdirAll(path, 0o755); err != nil {
				return err
			}
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			return err
		}
	}
	return nil
}
