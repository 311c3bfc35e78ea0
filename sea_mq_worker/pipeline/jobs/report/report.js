"use strict";
const plots = JSON.parse(document.getElementById("plots").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 640px)");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function traces(plot) {
  return plot.traces.map(({ colour: n, ...trace }) => {
    const tone = colour(`--c${n % 10}`);
    return {
      ...trace,
      ...(trace.type === "bar" && plot.dates ? { offset: 0, width: plot.dates * 950 } : {}),
      line: { color: tone, width: 1.8 },
      marker: { color: tone, size: 4, line: { width: 0 } },
      fillcolor: tone + "26",
    };
  });
}

function ticks(plot) {
  if (!plot.ticks) return { rangemode: "tozero", tickformat: ",~s" };
  const values = plot.traces.flatMap((trace) => trace.y.filter((y) => y !== null));
  const least = Math.min(...values), most = Math.max(...values);
  return {
    type: "log",
    range: [Math.log10(least) - 0.15, Math.log10(most) + 0.15],
    tickvals: plot.ticks.map((tick) => tick[0]),
    ticktext: plot.ticks.map((tick) => tick[1]),
  };
}

function layout(plot) {
  const grid = colour("--line"), text = colour("--soft-text");
  const axis = { gridcolor: grid, linecolor: grid, zerolinecolor: grid, automargin: true, fixedrange: narrow.matches };
  const title = (words) => ({ text: words, standoff: 8, font: { size: 12, color: text } });
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 12, color: text },
    margin: { l: 8, r: 8, t: 30, b: 8 },
    height: (narrow.matches ? 260 : 300) + 18 * Math.max(0, plot.traces.length - 4),
    showlegend: true,
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { color: colour("--text") } },
    hovermode: "x unified",
    hoverlabel: { bgcolor: colour("--card"), bordercolor: grid, font: { color: colour("--text") } },
    barmode: plot.bars || "group",
    bargap: plot.dates ? 0.05 : 0.35,
    dragmode: narrow.matches ? false : "zoom",
    xaxis: {
      ...axis,
      type: plot.dates ? "date" : "category",
      title: title(plot.dates ? "UTC" : plot.x),
      nticks: narrow.matches ? 4 : 6,
      tickangle: 0,
      tickformatstops: [
        { dtickrange: [null, 59999], value: "%H:%M:%S\n%b %-d" },
        { dtickrange: [60000, 86399999], value: "%H:%M\n%b %-d" },
        { dtickrange: [86400000, null], value: "%b %-d\n%Y" },
      ],
      showgrid: false,
    },
    yaxis: { ...axis, title: title(plot.y), ...ticks(plot) },
  };
}

async function draw(place) {
  const plot = plots[place.id];
  const config = { responsive: false, displaylogo: false, displayModeBar: false };
  await Plotly.react(place, traces(plot), { ...layout(plot), width: place.clientWidth }, config);
  place.dataset.drawn = "yes";
}

const places = Object.keys(plots).map((id) => document.getElementById(id));
const drawAll = () => places.forEach(draw);
const resized = new ResizeObserver((entries) => {
  setTimeout(() => {
    for (const { target } of entries) if (target.layout?.width !== target.clientWidth) draw(target);
  });
});
for (const place of places) resized.observe(place);
dark.addEventListener("change", drawAll);
narrow.addEventListener("change", drawAll);
drawAll();
