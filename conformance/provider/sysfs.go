// SPDX-License-Identifier: BSD-2-Clause

package provider

import (
	"os"
	"path/filepath"
	"strings"
)

// Device and Address are the emulated device's name and the address that its GID of RoCE v2 has.
const (
	Device  = "mlx5_0"
	Address = "192.0.2.1"
)

// sysfs has the files below SYSFS_PATH that libibverbs reads, and a directory that has to be there, without files.
var sysfs = map[string]string{
	"drivers/":                                          "",
	"class/infiniband_verbs/abi_version":                "6",
	"class/infiniband_verbs/uverbs0/abi_version":        "1",
	"class/infiniband_verbs/uverbs0/dev":                "231:192",
	"class/infiniband_verbs/uverbs0/ibdev":              Device,
	"class/infiniband/DEVICE/node_type":                 "1: CA",
	"class/infiniband/DEVICE/node_guid":                 "0267:6f76:6572:6273",
	"class/infiniband/DEVICE/sys_image_guid":            "0267:6f76:6572:6273",
	"class/infiniband/DEVICE/fw_ver":                    "16.35.1",
	"class/infiniband/DEVICE/device/modalias":           "pci:v000015B3d00001017sv000015B3sd00000001bc02sc00i00",
	"class/infiniband/DEVICE/ports/1/pkeys/0":           "0xffff",
	"class/infiniband/DEVICE/ports/1/gids/0":            "fe80:0000:0000:0000:0267:6fff:fe76:6572",
	"class/infiniband/DEVICE/ports/1/gids/1":            "0000:0000:0000:0000:0000:ffff:c000:0201",
	"class/infiniband/DEVICE/ports/1/gid_attrs/types/0": "IB/RoCE v1",
	"class/infiniband/DEVICE/ports/1/gid_attrs/types/1": "RoCE v2",
}

// writeSysfs makes a directory for SYSFS_PATH.
func writeSysfs(dir string) error {
	for name, text := range sysfs {
		path := filepath.Join(dir, strings.Replace(name, "DEVICE", Device, 1))
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
