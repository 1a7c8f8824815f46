# mpirun.sh MPIEXEC COUNT PROGRAM...: COUNT processes of this machine, however few cores it has, as root too.
set -euo pipefail
launcher=$1 count=$2
shift 2
export OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive OMP_PROC_BIND=false LC_ALL=C
# What Open MPI reads; other launchers ignore it.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_btl_base_warn_component_unused=0
exec "$launcher" -n "$count" "$@"
