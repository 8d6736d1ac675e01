// SPDX-License-Identifier: BSD-2-Clause

// Package tables reads rdma-core's man pages into plain data: the tables that say what is valid where, and which page
// explains which declaration. It keeps facts, never the pages' prose.
package tables
