// SPDX-License-Identifier: BSD-2-Clause

//go:build !unix

package dropin

import "os"

func changesUser(os.FileInfo) bool { return false }
