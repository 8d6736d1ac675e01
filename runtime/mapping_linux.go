// SPDX-License-Identifier: BSD-2-Clause

package runtime

import "golang.org/x/sys/unix"

const mapNoReserve = unix.MAP_NORESERVE
