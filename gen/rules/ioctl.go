// SPDX-License-Identifier: BSD-2-Clause

package rules

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/project"
)

// ioctlAttrs maps modules and methods of RDMA_VERBS_IOCTL to the enumerations of their attributes. No header connects
// the two. A driver has attributes of the core's methods, too.
var ioctlAttrs = map[string]string{
	"ib_uverbs UVERBS_METHOD_INVOKE_WRITE":                      "uverbs_attrs_invoke_write_cmd_attr_ids",
	"ib_uverbs UVERBS_METHOD_INFO_HANDLES":                      "uverbs_attrs_info_handles_id",
	"ib_uverbs UVERBS_METHOD_QUERY_PORT":                        "uverbs_attrs_query_port_cmd_attr_ids",
	"ib_uverbs UVERBS_METHOD_QUERY_PORT_SPEED":                  "uverbs_attrs_query_port_speed_cmd_attr_ids",
	"ib_uverbs UVERBS_METHOD_GET_CONTEXT":                       "uverbs_attrs_get_context_attr_ids",
	"ib_uverbs UVERBS_METHOD_QUERY_CONTEXT":                     "uverbs_attrs_query_context_attr_ids",
	"ib_uverbs UVERBS_METHOD_QUERY_GID_TABLE":                   "uverbs_attrs_query_gid_table_cmd_attr_ids",
	"ib_uverbs UVERBS_METHOD_QUERY_GID_ENTRY":                   "uverbs_attrs_query_gid_entry_cmd_attr_ids",
	"ib_uverbs UVERBS_METHOD_PD_DESTROY":                        "uverbs_attrs_pd_destroy_ids",
	"ib_uverbs UVERBS_METHOD_CQ_CREATE":                         "uverbs_attrs_create_cq_cmd_attr_ids",
	"ib_uverbs UVERBS_METHOD_CQ_DESTROY":                        "uverbs_attrs_destroy_cq_cmd_attr_ids",
	"ib_uverbs UVERBS_METHOD_QP_CREATE":                         "uverbs_attrs_create_qp_cmd_attr_ids",
	"ib_uverbs UVERBS_METHOD_QP_DESTROY":                        "uverbs_attrs_destroy_qp_cmd_attr_ids",
	"ib_uverbs UVERBS_METHOD_SRQ_CREATE":                        "uverbs_attrs_create_srq_cmd_attr_ids",
	"ib_uverbs UVERBS_METHOD_SRQ_DESTROY":                       "uverbs_attrs_destroy_srq_cmd_attr_ids",
	"ib_uverbs UVERBS_METHOD_WQ_CREATE":                         "uverbs_attrs_create_wq_cmd_attr_ids",
	"ib_uverbs UVERBS_METHOD_WQ_DESTROY":                        "uverbs_attrs_destroy_wq_cmd_attr_ids",
	"ib_uverbs UVERBS_METHOD_RWQ_IND_TBL_DESTROY":               "uverbs_attrs_rwq_ind_tbl_destroy_ids",
	"ib_uverbs UVERBS_METHOD_AH_DESTROY":                        "uverbs_attrs_ah_destroy_ids",
	"ib_uverbs UVERBS_METHOD_MW_DESTROY":                        "uverbs_attrs_mw_destroy_ids",
	"ib_uverbs UVERBS_METHOD_XRCD_DESTROY":                      "uverbs_attrs_xrcd_destroy_ids",
	"ib_uverbs UVERBS_METHOD_FLOW_DESTROY":                      "uverbs_attrs_flow_destroy_ids",
	"ib_uverbs UVERBS_METHOD_FLOW_ACTION_DESTROY":               "uverbs_attrs_destroy_flow_action_esp",
	"ib_uverbs UVERBS_METHOD_DM_ALLOC":                          "uverbs_attrs_alloc_dm_cmd_attr_ids",
	"ib_uverbs UVERBS_METHOD_DM_FREE":                           "uverbs_attrs_free_dm_cmd_attr_ids",
	"ib_uverbs UVERBS_METHOD_DMAH_ALLOC":                        "uverbs_attrs_alloc_dmah_cmd_attr_ids",
	"ib_uverbs UVERBS_METHOD_DMAH_FREE":                         "uverbs_attrs_free_dmah_cmd_attr_ids",
	"ib_uverbs UVERBS_METHOD_DMABUF_ALLOC":                      "uverbs_attrs_alloc_dmabuf_cmd_attr_ids",
	"ib_uverbs UVERBS_METHOD_DM_MR_REG":                         "uverbs_attrs_reg_dm_mr_cmd_attr_ids",
	"ib_uverbs UVERBS_METHOD_REG_MR":                            "uverbs_attrs_reg_mr_cmd_attr_ids",
	"ib_uverbs UVERBS_METHOD_REG_DMABUF_MR":                     "uverbs_attrs_reg_dmabuf_mr_cmd_attr_ids",
	"ib_uverbs UVERBS_METHOD_QUERY_MR":                          "uverbs_attrs_query_mr_cmd_attr_ids",
	"ib_uverbs UVERBS_METHOD_ADVISE_MR":                         "uverbs_attrs_advise_mr_cmd_attr_ids",
	"ib_uverbs UVERBS_METHOD_MR_DESTROY":                        "uverbs_attrs_mr_destroy_ids",
	"ib_uverbs UVERBS_METHOD_COUNTERS_CREATE":                   "uverbs_attrs_create_counters_cmd_attr_ids",
	"ib_uverbs UVERBS_METHOD_COUNTERS_DESTROY":                  "uverbs_attrs_destroy_counters_cmd_attr_ids",
	"ib_uverbs UVERBS_METHOD_COUNTERS_READ":                     "uverbs_attrs_read_counters_cmd_attr_ids",
	"ib_uverbs UVERBS_METHOD_ASYNC_EVENT_ALLOC":                 "uverbs_attrs_async_event_create",
	"mlx5_ib UVERBS_METHOD_QUERY_CONTEXT":                       "mlx5_ib_device_query_context_attrs",
	"mlx5_ib MLX5_IB_METHOD_QUERY_PORT":                         "mlx5_ib_query_port_attrs",
	"mlx5_ib MLX5_IB_METHOD_PD_QUERY":                           "mlx5_ib_query_pd_attrs",
	"mlx5_ib MLX5_IB_METHOD_CREATE_FLOW":                        "mlx5_ib_create_flow_attrs",
	"mlx5_ib MLX5_IB_METHOD_DESTROY_FLOW":                       "mlx5_ib_destroy_flow_attrs",
	"mlx5_ib MLX5_IB_METHOD_FLOW_ACTION_CREATE_MODIFY_HEADER":   "mlx5_ib_create_flow_action_create_modify_header_attrs",
	"mlx5_ib MLX5_IB_METHOD_FLOW_ACTION_CREATE_PACKET_REFORMAT": "mlx5_ib_create_flow_action_create_packet_reformat_attrs",
	"mlx5_ib UVERBS_METHOD_DM_ALLOC":                            "mlx5_ib_alloc_dm_attrs",
	"mlx5_ib MLX5_IB_METHOD_DM_MAP_OP_ADDR":                     "mlx5_ib_dm_map_op_addr_attrs",
	"mlx5_ib MLX5_IB_METHOD_DM_QUERY":                           "mlx5_ib_query_dm_attrs",
	"mlx5_ib MLX5_IB_METHOD_DEVX_OTHER":                         "mlx5_ib_devx_other_attrs",
	"mlx5_ib MLX5_IB_METHOD_DEVX_QUERY_UAR":                     "mlx5_ib_devx_query_uar_attrs",
	"mlx5_ib MLX5_IB_METHOD_DEVX_QUERY_EQN":                     "mlx5_ib_devx_query_eqn_attrs",
	"mlx5_ib MLX5_IB_METHOD_DEVX_SUBSCRIBE_EVENT":               "mlx5_ib_devx_subscribe_event_attrs",
	"mlx5_ib MLX5_IB_METHOD_DEVX_OBJ_CREATE":                    "mlx5_ib_devx_obj_create_attrs",
	"mlx5_ib MLX5_IB_METHOD_DEVX_OBJ_DESTROY":                   "mlx5_ib_devx_obj_destroy_attrs",
	"mlx5_ib MLX5_IB_METHOD_DEVX_OBJ_MODIFY":                    "mlx5_ib_devx_obj_modify_attrs",
	"mlx5_ib MLX5_IB_METHOD_DEVX_OBJ_QUERY":                     "mlx5_ib_devx_obj_query_attrs",
	"mlx5_ib MLX5_IB_METHOD_DEVX_OBJ_ASYNC_QUERY":               "mlx5_ib_devx_obj_query_async_attrs",
	"mlx5_ib MLX5_IB_METHOD_DEVX_UMEM_REG":                      "mlx5_ib_devx_umem_reg_attrs",
	"mlx5_ib MLX5_IB_METHOD_DEVX_UMEM_DEREG":                    "mlx5_ib_devx_umem_dereg_attrs",
	"mlx5_ib MLX5_IB_METHOD_FLOW_MATCHER_CREATE":                "mlx5_ib_flow_matcher_create_attrs",
	"mlx5_ib MLX5_IB_METHOD_FLOW_MATCHER_DESTROY":               "mlx5_ib_flow_matcher_destroy_attrs",
	"mlx5_ib MLX5_IB_METHOD_DEVX_ASYNC_CMD_FD_ALLOC":            "mlx5_ib_devx_async_cmd_fd_alloc_attrs",
	"mlx5_ib MLX5_IB_METHOD_DEVX_ASYNC_EVENT_FD_ALLOC":          "mlx5_ib_devx_async_event_fd_alloc_attrs",
	"mlx5_ib MLX5_IB_METHOD_VAR_OBJ_ALLOC":                      "mlx5_ib_var_alloc_attrs",
	"mlx5_ib MLX5_IB_METHOD_VAR_OBJ_DESTROY":                    "mlx5_ib_var_obj_destroy_attrs",
	"mlx5_ib MLX5_IB_METHOD_PP_OBJ_ALLOC":                       "mlx5_ib_pp_alloc_attrs",
	"mlx5_ib MLX5_IB_METHOD_PP_OBJ_DESTROY":                     "mlx5_ib_pp_obj_destroy_attrs",
	"mlx5_ib MLX5_IB_METHOD_UAR_OBJ_ALLOC":                      "mlx5_ib_uar_alloc_attrs",
	"mlx5_ib MLX5_IB_METHOD_UAR_OBJ_DESTROY":                    "mlx5_ib_uar_obj_destroy_attrs",
	"mlx5_ib MLX5_IB_METHOD_STEERING_ANCHOR_CREATE":             "mlx5_ib_flow_steering_anchor_create_attrs",
	"mlx5_ib MLX5_IB_METHOD_STEERING_ANCHOR_DESTROY":            "mlx5_ib_flow_steering_anchor_destroy_attrs",
	"mlx5_ib MLX5_IB_METHOD_GET_DATA_DIRECT_SYSFS_PATH":         "mlx5_ib_get_data_direct_sysfs_path_attrs",
	"mlx5_ib UVERBS_METHOD_CQ_CREATE":                           "mlx5_ib_create_cq_attrs",
	"mlx5_ib UVERBS_METHOD_REG_DMABUF_MR":                       "mlx5_ib_reg_dmabuf_mr_attrs",
	"mlx5_ib UVERBS_METHOD_QP_CREATE":                           "mlx5_ib_create_qp_attrs",
	"bnxt_re UVERBS_METHOD_QP_CREATE":                           "bnxt_re_create_qp_attrs",
	"bnxt_re BNXT_RE_METHOD_ALLOC_PAGE":                         "bnxt_re_var_alloc_page_attrs",
	"bnxt_re BNXT_RE_METHOD_DESTROY_PAGE":                       "bnxt_re_alloc_page_attrs",
	"bnxt_re BNXT_RE_METHOD_GET_TOGGLE_MEM":                     "bnxt_re_var_toggle_mem_attrs",
	"bnxt_re BNXT_RE_METHOD_RELEASE_TOGGLE_MEM":                 "bnxt_re_toggle_mem_attrs",
	"bnxt_re BNXT_RE_METHOD_DBR_ALLOC":                          "bnxt_re_obj_dbr_alloc_attrs",
	"bnxt_re BNXT_RE_METHOD_DBR_FREE":                           "bnxt_re_obj_dbr_free_attrs",
	"bnxt_re BNXT_RE_METHOD_GET_DEFAULT_DBR":                    "bnxt_re_obj_default_dbr_attrs",
}

// ioctlDrivers maps the modules of drivers to their constants.
var ioctlDrivers = map[string]string{"mlx5_ib": "RDMA_DRIVER_MLX5", "bnxt_re": "RDMA_DRIVER_BNXT_RE"}

// ioctlDriverAttrs are the attributes of a driver's own request and response, which several methods have.
var ioctlDriverAttrs = []string{"UVERBS_ATTR_UHW_IN", "UVERBS_ATTR_UHW_OUT"}

// IoctlAnyObject is the constant of package ioctls for handles of any object.
const IoctlAnyObject = "AnyObject"

// IoctlPlan is the package of the kernel's ioctl methods.
type IoctlPlan struct {
	UAPI    *Plan
	Kernels []IoctlKernel // the earliest first
}

// IoctlKernel holds the methods of a kernel.
type IoctlKernel struct {
	Name, Source string
	Modules      []IoctlModule // the core first
}

// IoctlModule holds the methods and attributes that a module adds. Driver is the driver's constant of package uapi, ""
// for the core.
type IoctlModule struct {
	Name, Driver string
	Methods      []IoctlMethod
}

// IoctlMethod is a method of an object. Its names are constants of package uapi.
type IoctlMethod struct {
	Object, Name string
	Attrs        []IoctlAttr
}

// IoctlAttr is an attribute with its constant, and for handles the constant of the object's type.
type IoctlAttr struct {
	model.IoctlAttr
	Name, Target string
}

// Ioctls plans the package of ioctl methods from the schemas of kernels, and the constants in package uapi; nil without
// schemas.
func Ioctls(schemas []*model.IoctlSchema, plans []*Plan) (*IoctlPlan, error) {
	i := slices.IndexFunc(plans, func(p *Plan) bool { return p.Package.Name == "uapi" })
	if len(schemas) == 0 || i < 0 {
		return nil, nil
	}
	plan := &IoctlPlan{UAPI: plans[i]}
	used := map[string]bool{}
	var errs []error
	for _, s := range schemas {
		kernel := IoctlKernel{Name: s.Kernel, Source: s.Source}
		for _, a := range s.Attrs {
			if err := plan.add(&kernel, a, used); err != nil {
				errs = append(errs, fmt.Errorf("headers/ioctls/%s: %w", s.File(), err))
			}
		}
		plan.Kernels = append(plan.Kernels, kernel)
	}
	for _, rows := range []map[string]string{ioctlAttrs, ioctlDrivers} {
		for row := range rows {
			if !used[row] {
				errs = append(errs, fmt.Errorf("gen/rules/ioctl.go: stale row %s: no kernel in headers/ioctls has it; delete it",
					row))
			}
		}
	}
	slices.SortFunc(plan.Kernels, func(a, b IoctlKernel) int { return project.CompareReleases(a.Name, b.Name) })
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return plan, errors.Join(errs...)
}

// add adds an attribute to a kernel's plan, whose last method is the one of the attribute before. It marks the rows that
// it uses.
func (p *IoctlPlan) add(k *IoctlKernel, a model.IoctlAttr, used map[string]bool) error {
	driver := ioctlDrivers[a.Module]
	if driver == "" && a.Module != model.IoctlCore {
		return fmt.Errorf("no constant of driver %s; add it to ioctlDrivers in gen/rules/ioctl.go", a.Module)
	}
	used[a.Module] = true
	if n := len(k.Modules); n == 0 || k.Modules[n-1].Name != a.Module {
		k.Modules = append(k.Modules, IoctlModule{Name: a.Module, Driver: driver})
	}
	module := &k.Modules[len(k.Modules)-1]
	if n := len(module.Methods); n == 0 || module.Methods[n-1].Name != a.Method {
		module.Methods = append(module.Methods, IoctlMethod{Object: a.Object, Name: a.Method})
	}
	if a.Kind == model.IoctlNone {
		return nil
	}
	row := a.Module + " " + a.Method
	enum := ioctlAttrs[row]
	if enum == "" {
		return fmt.Errorf("no enumeration of the attributes of %s; add it to ioctlAttrs in gen/rules/ioctl.go", row)
	}
	used[row] = true
	name, err := p.attr(enum, a)
	target, err2 := p.object(a)
	m := &module.Methods[len(module.Methods)-1]
	m.Attrs = append(m.Attrs, IoctlAttr{a, name, target})
	return cmp.Or(err, err2)
}

// attr returns the constant of an attribute.
func (p *IoctlPlan) attr(enum string, a model.IoctlAttr) (string, error) {
	for _, e := range p.UAPI.Enums {
		for _, c := range e.Names {
			if e.Tag == enum && c.Value.Uint64() == uint64(a.ID) {
				return c.Go, nil
			}
		}
	}
	for _, c := range p.UAPI.Consts {
		if slices.Contains(ioctlDriverAttrs, c.C) && c.Value.Uint64() == uint64(a.ID) {
			return c.Go, nil
		}
	}
	return "", fmt.Errorf("%s: enum %s has no constant for attribute %d", a.Method, enum, a.ID)
}

// object returns the constant of the type of an attribute's object, or "" for other kinds of attributes.
func (p *IoctlPlan) object(a model.IoctlAttr) (string, error) {
	switch {
	case !a.Kind.IsObject():
		return "", nil
	case a.Target == 0xffff: // UVERBS_IDR_ANY_OBJECT of the kernel
		return IoctlAnyObject, nil
	}
	for _, e := range p.UAPI.Enums {
		for _, c := range e.Names {
			if (e.Tag == "uverbs_default_objects" || e.Tag == a.Module+"_objects") && c.Value.Uint64() == uint64(a.Target) {
				return c.Go, nil
			}
		}
	}
	return "", fmt.Errorf("%s: attribute %d: unknown type of object %d", a.Method, a.ID, a.Target)
}
