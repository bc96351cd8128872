//! Recorded launches as CUDA graphs.

use super::failed;
use crate::device::Recorded;
use cudarc::driver::sys::{self, CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaGraph, CudaStream};
use octavo_backend::BackendError;
use std::fmt;
use std::sync::Arc;

struct Graph {
    graph: CudaGraph,
    nodes: usize,
}

// SAFETY: handles that the driver may be given from any thread, one at a time; a back end has one thread.
unsafe impl Send for Graph {}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a graph of {} nodes", self.nodes)
    }
}

pub(super) fn record(stream: &Arc<CudaStream>) -> Result<(), BackendError> {
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    stream.begin_capture(mode).map_err(failed("beginning to record a step"))
}

pub(super) fn recorded(stream: &Arc<CudaStream>) -> Result<Box<dyn Recorded>, BackendError> {
    let flags = CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    let graph = stream.end_capture(flags).map_err(failed("recording a step"))?;
    let graph = graph.ok_or_else(|| BackendError::Device("nothing was recorded".into()))?;
    graph.upload().map_err(failed("placing a recorded step"))?;
    let mut nodes = 0;
    // SAFETY: a live graph; with no array the call only counts.
    unsafe { sys::cuGraphGetNodes(graph.cu_graph(), std::ptr::null_mut(), &mut nodes) }
        .result()
        .map_err(failed("counting a step's kernels"))?;
    Ok(Box::new(Graph { graph, nodes }))
}

impl Recorded for Graph {
    fn replay(&self) -> Result<(), BackendError> {
        self.graph.launch().map_err(failed("replaying a step"))
    }

    fn kernels(&self) -> usize {
        self.nodes
    }
}
